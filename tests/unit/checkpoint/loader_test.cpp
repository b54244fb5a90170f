#include "checkpoint/loader.h"

#include <cstring>
#include <fstream>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "base/files.h"
#include "checkpoint/format/dcp/archive.h"
#include "checkpoint/format/safetensors/safetensors_writer.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thread_ranks.h"
#include "tests/unit/checkpoint/mesh_state.h"

namespace hyperion::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

// Extents that no mesh divides evenly; some parts have no elements.
const std::vector<MeshTensor> kOdd = {
    {"tok_embeddings.weight", {17, 5}, 0}, {"wq.weight", {12, 7}, 0}, {"wo.weight", {7, 25}, 1},
    {"experts.weight", {3, 5, 4}, 1},      {"norm.weight", {5}, {}},  {"tiny.weight", {2, 3}, 1}};

LoadReport load_into(const OpenCheckpoint& checkpoint, MeshState& state, MemoryMover& mover,
                     const LoadOptions& options = {}, const StoredNames& mapped = {}) {
  StoredNames names = mapped;
  for (const auto& [key, record] : checkpoint.index.tensors) names.keys.emplace(key, key);
  return load_tensors(checkpoint, plan_load(checkpoint, state.tensors(), names, options), mover, options);
}

LoadReport load_into(const fs::path& path, MeshState& state, const LoadOptions& options = {}) {
  MemoryMover mover;
  return load_into(open_checkpoint(path), state, mover, options);
}

// One tensor of this many elements of float32, element i being i % 251, as a folder of safetensors.
fs::path write_safetensors(const fs::path& folder, const std::string& name, const Dims& shape,
                           const RowMap& stored_row = {}) {
  MeshState state({{name, shape, {}}}, {}, 0);
  state.fill(0);
  const TensorState tensor = state.tensors().front();
  std::vector<std::byte> bytes(tensor.local_bytes());
  const uint64_t row_bytes = bytes.size() / static_cast<uint64_t>(shape[0]);
  for (int64_t row = 0; row < shape[0]; ++row)
    std::memcpy(bytes.data() + static_cast<uint64_t>(stored_row ? stored_row(row) : row) * row_bytes,
                static_cast<const std::byte*>(tensor.data) + static_cast<uint64_t>(row) * row_bytes,
                row_bytes);
  const SafetensorsPlan plan = plan_safetensors({{name, Dtype::kFloat32, shape}});
  fs::create_directories(folder);
  create_safetensors(folder, plan);
  SafetensorsWriter writer(folder, plan);
  writer.write(0, 0, bytes);
  writer.sync();
  return folder;
}

// Bytes and calls of this process's reads so far.
struct Reads {
  uint64_t bytes = 0, calls = 0;
};
Reads reads_so_far() {
  std::ifstream lines("/proc/self/io");  // read_file() takes its size, 0, for the end
  Reads reads;
  for (std::string name; lines >> name;) {
    uint64_t value = 0;
    lines >> value;
    if (name == "rchar:") reads.bytes = value;
    if (name == "syscr:") reads.calls = value;
  }
  return reads;
}

class CountingBroadcasts : public Coordinator {
 public:
  explicit CountingBroadcasts(Coordinator& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::vector<std::string> gather(const std::string& text) override { return inner_.gather(text); }
  std::string broadcast(const std::string& text) override {
    ++count;
    return inner_.broadcast(text);
  }
  size_t count = 0;

 private:
  Coordinator& inner_;
};

void flip(const fs::path& file, uint64_t at) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(at));
  const int byte = stream.get();
  stream.seekp(static_cast<std::streamoff>(at));
  stream.put(static_cast<char>(byte ^ 4));
}

}  // namespace

TEST_CASE(
    "what a mesh with tensor parallelism has saved every other one loads, with odd extents and empty parts") {
  const TemporaryFolder folder;
  const std::vector<RankMesh> meshes = {{},
                                        {.shards = 3},
                                        {.tensor = 2},
                                        {.tensor = 4},
                                        {.shards = 2, .tensor = 2},
                                        {.shards = 2, .tensor = 3},
                                        {.replicas = 2, .tensor = 2},
                                        {.shards = 2, .replicas = 2, .tensor = 2}};
  for (size_t from = 0; from < meshes.size(); ++from) {
    for (const Writers writers : {Writers::kAll, Writers::kOneReplica}) {
      const auto seed = static_cast<int64_t>(from) + 1;
      const fs::path path = save_mesh(folder.path() / fmt::format("{}-{}", from, static_cast<int>(writers)),
                                      kOdd, meshes[from], seed, writers);
      for (const RankMesh& to : meshes) {
        for (int rank = 0; rank < to.ranks(); ++rank) {
          MeshState loaded(kOdd, to, rank);
          load_into(path, loaded);
          CHECK(loaded.holds(seed));
        }
      }
    }
  }
}

TEST_CASE("a load converts the type of columns") {
  const TemporaryFolder folder;
  const fs::path path = save_mesh(folder.path(), kOdd, {.shards = 3}, 4);
  const RankMesh tiles = {.shards = 2, .tensor = 2};
  for (int rank = 0; rank < tiles.ranks(); ++rank) {
    for (const Dtype dtype : {Dtype::kBFloat16, Dtype::kFloat64}) {
      MeshState loaded(kOdd, tiles, rank, dtype);
      load_into(path, loaded, {.allow_dtype_cast = true, .verify_finite = true});
      CHECK(loaded.holds(4));
    }
  }
}

TEST_CASE("a load of the same tiles reads no other rank's chunk") {
  const TemporaryFolder folder;
  const RankMesh mesh = {.shards = 2, .tensor = 3};
  const fs::path path = save_mesh(folder.path(), kOdd, mesh, 9);
  fs::remove(path /
             "hyperion.json");  // then each archive that is read has its own checksum compared, no other
  const OpenCheckpoint checkpoint = open_checkpoint(path);
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const fs::path damaged = folder.path() / fmt::format("damaged-{}", rank);
    fs::copy(path, damaged);
    MeshState loaded(kOdd, mesh, rank);
    for (const TensorState& tensor : loaded.tensors()) {
      const TensorRecord& record = checkpoint.index.tensors.at(tensor.key);
      for (const Chunk& chunk : record.chunks)
        if (Box{chunk.offset, chunk.shape} != tensor.box())
          flip(damaged / chunk.where.file,
               chunk.where.offset + tensor_archive_head(record.dtype, chunk.shape).size());
    }
    uint64_t own = 0;
    for (const TensorState& tensor : loaded.tensors()) own += tensor.local_bytes();
    CHECK(load_into(damaged, loaded).bytes == own);
    CHECK(loaded.holds(9));
  }
}

TEST_CASE("a damaged tile is named with its file, the range and the tensor") {
  const TemporaryFolder folder;
  const RankMesh mesh = {.tensor = 2};
  const fs::path path = save_mesh(folder.path(), {{"wo.weight", {8, 10}, 1}}, mesh, 1);
  const Chunk chunk = open_checkpoint(path).index.tensors.at("wo.weight").chunks.at(1);
  CHECK(chunk.offset == Dims{0, 5});
  flip(path / chunk.where.file,
       chunk.where.offset + tensor_archive_head(Dtype::kFloat32, chunk.shape).size());
  for (const RankMesh& to : {mesh, RankMesh{}}) {
    MeshState loaded({{"wo.weight", {8, 10}, 1}}, to, to.ranks() - 1);
    CHECK_THAT(
        error_of(ExitCode::kBadData, [&] { load_into(path, loaded); }),
        Catch::Contains(chunk.where.file) && Catch::Contains("bytes 0 to") && Catch::Contains("wo.weight"));
  }
  fs::remove(path / "hyperion.json");
  MeshState loaded({{"wo.weight", {8, 10}, 1}}, mesh, 1);
  CHECK_THAT(error_of(ExitCode::kBadData, [&] { load_into(path, loaded); }),
             Catch::Contains(chunk.where.file) && Catch::Contains("wo.weight"));
}

TEST_CASE(
    "of wide rows of safetensors a rank reads the share that is its columns, of narrow ones all at once") {
  const TemporaryFolder folder;
  constexpr int64_t kRows = 256, kWide = 16384, kNarrow = 640;
  const auto read = [&](int64_t width) {
    const std::string name = fmt::format("w{}", width);
    const OpenCheckpoint checkpoint =
        open_checkpoint(write_safetensors(folder.path() / name, name, {kRows, width}));
    std::vector<Reads> reads;
    for (int rank = 0; rank < 4; ++rank) {
      MeshState loaded({{name, {kRows, width}, 1}}, {.tensor = 4}, rank);
      MemoryMover mover;
      const Reads before = reads_so_far();
      load_into(checkpoint, loaded, mover);
      const Reads after = reads_so_far();
      CHECK(loaded.holds(0));
      reads.push_back({after.bytes - before.bytes, after.calls - before.calls});
    }
    return reads;
  };
  constexpr uint64_t kSlack = 16 << 10;  // what asking for the numbers reads itself
  for (const Reads& one : read(kWide)) {
    CHECK(one.bytes < kRows * kWide * 4 / 4 + kSlack);
    CHECK(one.calls < kRows + 32);
  }
  for (const Reads& one : read(kNarrow)) {  // gaps of 1,920 bytes
    CHECK(one.bytes < kRows * kNarrow * 4 + kSlack);
    CHECK(one.calls < 32);
  }
}

TEST_CASE("rows in another order are loaded into parts that are cut by heads, then by rows, or by columns") {
  const TemporaryFolder folder;
  constexpr int64_t kHead = 8;
  const RowMap stored_row = [](int64_t row) {  // llama's rotary pairs
    const int64_t in_head = row % kHead;
    return row - in_head + in_head % 2 * (kHead / 2) + in_head / 2;
  };
  const fs::path path = write_safetensors(folder.path() / "hf", "wq", {48, 6}, stored_row);
  const StoredNames names{.keys = {}, .row_map = [&](const std::string&) { return stored_row; }};
  for (const RankMesh& mesh : {RankMesh{}, RankMesh{.tensor = 2}, RankMesh{.shards = 3, .tensor = 2},
                               RankMesh{.shards = 5, .tensor = 3}}) {
    for (const int split : {0, 1}) {
      for (int rank = 0; rank < mesh.ranks(); ++rank) {
        MeshState loaded({{"wq", {48, 6}, split}}, mesh, rank);
        MemoryMover mover;
        load_into(open_checkpoint(path), loaded, mover, {}, names);
        CHECK(loaded.holds(0));
      }
    }
  }
}

TEST_CASE("columns of a large tensor are picked and converted in bounded memory") {
  class Measuring : public MemoryMover {
   public:
    std::shared_ptr<std::byte> allocate(uint64_t bytes) override {
      all += bytes;
      return MemoryMover::allocate(bytes);
    }
    uint64_t all = 0;
  };
  const TemporaryFolder folder;
  const std::vector<MeshTensor> large = {{"wo", {5120, 10240}, 1}};  // 200 MiB
  const fs::path path = save_mesh(folder.path(), large, {}, 2);
  for (const auto& [mesh, dtype] : {std::pair{RankMesh{.tensor = 2}, Dtype::kFloat32},
                                    {RankMesh{.tensor = 2}, Dtype::kBFloat16},
                                    {RankMesh{.shards = 2, .tensor = 2}, Dtype::kFloat32}}) {
    MeshState loaded(large, mesh, 1, dtype);
    Measuring mover;
    load_into(open_checkpoint(path), loaded, mover, {.allow_dtype_cast = true});
    CHECK(loaded.holds(2));
    CHECK(mover.all <= uint64_t{128} << 20);
  }
}

TEST_CASE("a tensor of another stage is compared by name and shape and not read") {
  const TemporaryFolder folder;
  const fs::path path = save_mesh(folder.path(), {{"a", {4, 3}, 0}, {"b", {4, 3}, 0}}, {}, 3);
  const OpenCheckpoint checkpoint = open_checkpoint(path);
  MeshState state({{"a", {4, 3}, 0}, {"b", {4, 3}, 0}}, {}, 0);
  std::vector<TensorState> tensors = state.tensors();
  tensors[1].placement.is_local = false;
  tensors[1].data = nullptr;
  StoredNames names;
  names.keys = {{"a", "a"}, {"b", "b"}};
  MemoryMover mover;
  CHECK(load_tensors(checkpoint, plan_load(checkpoint, tensors, names, {}), mover, {}).bytes == 48);
  tensors[1].shape = {5, 3};
  CHECK_THROWS_WITH(plan_load(checkpoint, tensors, names, {}), Catch::Contains("[5, 3]"));
}

TEST_CASE("a second name of a tensor is unexpected unless it holds the same numbers") {
  const TemporaryFolder folder;
  const auto stored = [&](const std::string& name, const Dims& shape_of_head, float last) {
    const SafetensorsPlan plan = plan_safetensors(
        {{"table.weight", Dtype::kFloat32, {8, 3}}, {"output.weight", Dtype::kFloat32, shape_of_head}});
    fs::create_directories(folder.path() / name);
    create_safetensors(folder.path() / name, plan);
    SafetensorsWriter writer(folder.path() / name, plan);
    std::vector<float> numbers(24);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
    writer.write(0, 0, std::as_bytes(std::span(numbers)));
    numbers.back() = last;
    writer.write(1, 0, std::as_bytes(std::span(numbers)));
    writer.sync();
    return open_checkpoint(folder.path() / name);
  };
  const auto refusal = [](const OpenCheckpoint& checkpoint, int rank) {
    MeshState state({{"table.weight", {8, 3}}}, {.shards = 2}, rank);
    std::vector<TensorState> tensors = state.tensors();
    tensors.front().aliases = {"output.weight"};
    StoredNames names;
    for (const auto& [key, record] : checkpoint.index.tensors) names.keys.emplace(key, key);
    LoadOptions options;
    options.subject = "its model";
    options.untie = "untie it";
    return error_of(ExitCode::kBadData, [&] {
      MemoryMover mover;
      load_tensors(checkpoint, plan_load(checkpoint, tensors, names, options), mover, options);
      CHECK(state.holds(0));
    });
  };
  const OpenCheckpoint equal = stored("equal", {8, 3}, 23), other = stored("other", {8, 3}, 22);
  CHECK(refusal(equal, 1) == "nothing was thrown");
  CHECK(refusal(other, 0) == "nothing was thrown");  // whose rows are equal
  CHECK_THAT(refusal(other, 1),
             Catch::Contains("does not fit its model: unexpected: output.weight holds other "
                             "numbers than table.weight") &&
                 Catch::EndsWith("; untie it"));
  CHECK_THAT(refusal(stored("shape", {4, 6}, 23), 0),
             Catch::Contains("1 unexpected") && Catch::Contains("output.weight"));
}

TEST_CASE("the index files of many ranks reach every rank in as many broadcasts as one file") {
  const auto broadcasts = [](const IndexFiles& files) {
    std::vector<size_t> counts(2);
    test::ThreadRanks::run(2, [&](Coordinator& inner) {
      CountingBroadcasts ranks(inner);
      const bool first = ranks.rank() == 0;
      const auto received = broadcast_index_files(first ? std::optional(files) : std::nullopt, ranks);
      REQUIRE(received);
      CHECK(received->manifest == files.manifest);
      REQUIRE(received->index.size() == files.index.size());
      for (size_t i = 0; i < files.index.size(); ++i) {
        CHECK(received->index[i].name == files.index[i].name);
        CHECK((received->index[i].content == files.index[i].content));
      }
      counts[static_cast<size_t>(ranks.rank())] = ranks.count;
    });
    CHECK(counts[0] == counts[1]);
    return counts[0];
  };
  IndexFiles files;
  files.index = {{"__0.metadata", "the first\n12 of\n"}};
  const size_t one = broadcasts(files);
  for (int rank = 1; rank < 50; ++rank)
    files.index.push_back({fmt::format("__{}.metadata", rank), std::string(rank % 7, 'a')});
  CHECK(broadcasts(files) == one);
  files.manifest = "{}\n";
  CHECK(broadcasts(files) == one);
  files.index.push_back({"__50.metadata", std::string((size_t{20} << 20), 'b')});  // two pieces
  CHECK(broadcasts(files) == one + 1);
  test::ThreadRanks::run(2, [](Coordinator& ranks) { CHECK_FALSE(broadcast_index_files({}, ranks)); });
}

TEST_CASE(
    "indices of ranks that are too large together are refused with their sum and the way to a smaller one") {
  const TemporaryFolder temporary;
  std::ofstream(temporary.path() / "__0.metadata") << std::string(24, ' ');
  std::ofstream(temporary.path() / "__1.metadata");
  fs::resize_file(temporary.path() / "__1.metadata", uint64_t{1} << 30);
  CHECK_THAT(error_of(ExitCode::kBadData, [&] { open_checkpoint(temporary.path()); }),
             Catch::Contains("__0.metadata to __1.metadata, has 1073741848 bytes") &&
                 Catch::Contains("save it again without use_collectives=False"));
}

TEST_CASE("MXFP4 is read as the numbers of transformers, and a rank reads the bytes of its part") {
  const OpenCheckpoint golden = open_checkpoint(HYPERION_SOURCE_DIR "/tests/goldens/mxfp4");
  const TensorRecord &codes = golden.index.tensors.at("blocks"), &scales = golden.index.tensors.at("scales"),
                     &values = golden.index.tensors.at("values");
  const Dims shape = {2, 12, 96};
  REQUIRE(values.shape == shape);
  Chunk chunk{.offset = {0, 0, 0}, .shape = shape, .where = codes.chunks.front().where};
  chunk.form = std::make_shared<const ForeignForm>(ForeignForm{.strides = {},
                                                               .scales = scales.chunks.front().where,
                                                               .block = 32,
                                                               .encoding = ForeignForm::Encoding::kFloat4});
  const TensorRecord encoded{Dtype::kFloat32, shape, {chunk}};
  const auto read = [&](const TensorRecord& record, const Box& box) {
    const Chunk& of = record.chunks.front();
    ShardReader file(golden.folder, of.where.file, golden.record(of.where.file), Links::kFollow);
    std::vector<float> numbers(static_cast<size_t>(box.numel()));
    ChunkReader(file, golden, "values", record, of, /*check_crcs=*/false)
        .read(box, reinterpret_cast<std::byte*>(numbers.data()));
    return numbers;
  };
  // Whole, an expert, rows, columns at odd places and across scales, and one number.
  for (const Box& box :
       {whole_box(shape), Box{{1, 0, 0}, {1, 12, 96}}, Box{{0, 3, 0}, {2, 5, 96}},
        Box{{0, 2, 31}, {2, 9, 34}}, Box{{0, 0, 48}, {2, 12, 48}}, Box{{1, 7, 95}, {1, 1, 1}}}) {
    CAPTURE(box.offset, box.shape);
    const std::vector<float> found = read(encoded, box), expected = read(values, box);
    CHECK(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)) == 0);
  }
  const Reads before = reads_so_far();
  read(encoded, {{1, 4, 0}, {1, 2, 96}});
  CHECK(reads_so_far().bytes - before.bytes < 4096);
}

}  // namespace hyperion::checkpoint
