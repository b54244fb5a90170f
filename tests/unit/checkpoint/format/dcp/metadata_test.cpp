#include "checkpoint/format/dcp/metadata.h"

#include <ctime>
#include <functional>

#include "base/files.h"
#include "tests/support/encode_index.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/checkpoint/format/format_fixtures.h"

namespace hyperion::checkpoint {

using namespace test;

namespace {

// A tensor of 4 x 6 in two chunks, a 0-d tensor, and an object.
CheckpointIndex small_index() {
  CheckpointIndex index;
  index.save_id = "an id";
  index.tensors["w"] = {Dtype::kBFloat16,
                        {4, 6},
                        {{{0, 0}, {3, 6}, {"__0_0.distcp", 0, 900}},
                         {{3, 0}, {1, 6}, {"__1_0.distcp", uint64_t{5} << 32, 901}}}};
  index.tensors["optimizer.state.w.step"] = {Dtype::kFloat32, {}, {{{}, {}, {"__0_0.distcp", 900, 700}}}};
  index.objects["n.0.k"] = {{"__1_0.distcp", 0, 300}};
  index.paths["w"] = {"w"};
  index.paths["optimizer.state.w.step"] = {"optimizer", "state.w.step"};
  index.paths["n.0.k"] = {"n", int64_t{0}, "k"};
  return index;
}

// The refusal of the small index after a change.
std::string refusal_of(const std::function<void(CheckpointIndex&)>& change) {
  CheckpointIndex index = small_index();
  change(index);
  return refusal([&] { decode_index(encode_index(index)); });
}

// What two ranks write of the small index without collectives: each a part of `w`, and a copy of what is
// whole.
std::vector<CheckpointIndex> index_of_ranks() {
  std::vector<CheckpointIndex> ranks(2, small_index());
  for (size_t rank = 0; rank < 2; ++rank) {
    const std::string file = fmt::format("__{}_0.distcp", rank);
    auto [w, step] = std::tie(ranks[rank].tensors.at("w"), ranks[rank].tensors.at("optimizer.state.w.step"));
    w.chunks = {w.chunks[rank]};
    step.chunks[0].where = {file, 2000, 700};
    ranks[rank].objects.at("n.0.k").where = {file, 3000, 300};
    ranks[rank].save_id = fmt::format("id {}", rank);
  }
  ranks[1].objects["of rank 1"] = {{"__1_0.distcp", 4000, 300}};
  return ranks;
}

CheckpointIndex decode_ranks(const std::vector<CheckpointIndex>& ranks) {
  std::vector<IndexFile> files;
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    files.push_back({fmt::format("__{}.metadata", rank), encode_index(ranks[rank])});
  return decode_metadata("step-7", files);
}

// Replaces one text of the pickle by another of the same length.
std::string replaced(std::string bytes, const std::string& from, const std::string& to) {
  REQUIRE(from.size() == to.size());
  REQUIRE(bytes.find(from) != std::string::npos);
  return bytes.replace(bytes.find(from), from.size(), to);
}

// One tensor of `shape` in the given boxes, as decode_index() judges it.
bool tiles(const Dims& shape, const std::vector<std::pair<Dims, Dims>>& boxes) {
  CheckpointIndex index;
  TensorRecord tensor{Dtype::kFloat32, shape, {}};
  for (const auto& [offset, extent] : boxes)
    tensor.chunks.push_back({offset, extent, {fmt::format("f{}", tensor.chunks.size()), 0, INT64_MAX}});
  index.tensors["t"] = tensor;
  return is_accepted([&] { decode_index(encode_index(index)); });
}

// The pickle of an index in which `keys` empty tensors are one and the same value, with `junk` more fields.
std::string shared_tensor(size_t keys, size_t junk) {
  const std::string module = "torch.distributed.checkpoint.metadata\n";
  const auto text = [](const std::string& content) {
    const auto size = static_cast<uint32_t>(content.size());
    return "X" + std::string(reinterpret_cast<const char*>(&size), sizeof size) + content;
  };
  std::string tensor = "c" + module + "TensorStorageMetadata\n)\x81}(";
  for (size_t i = 0; i < junk; ++i) tensor += "NN";
  tensor += text("properties") + "c" + module + "TensorProperties\n)\x81(ctorch\nfloat32\ntb";
  tensor += text("size") + "K"s + '\0' + "\x85"s + text("chunks") + "]ubq"s + '\0';
  std::string all = "\x80\x02"s + "c" + module + "Metadata\n)\x81}(" + text("storage_data") + "}" +
                    text("state_dict_metadata") + "}(" + text("key 0") + tensor;
  for (size_t i = 1; i < keys; ++i) all += text(fmt::format("key {}", i)) + "h"s + '\0';
  return all + "uub.";
}

}  // namespace

TEST_CASE("an index survives being written and read") {
  const CheckpointIndex index = small_index(), read = decode_index(encode_index(index));
  CHECK(read.layout == CheckpointIndex::Layout::kArchives);
  CHECK(read.save_id == "an id");
  CHECK(read.paths == index.paths);
  REQUIRE(read.tensors.size() == 2);
  CHECK(read.tensors.at("w").dtype == Dtype::kBFloat16);
  CHECK(read.tensors.at("w").shape == Dims{4, 6});
  for (const auto& [key, tensor] : index.tensors) {
    REQUIRE(read.tensors.at(key).chunks.size() == tensor.chunks.size());
    for (size_t i = 0; i < tensor.chunks.size(); ++i) {
      CHECK(read.tensors.at(key).chunks[i].offset == tensor.chunks[i].offset);
      CHECK(read.tensors.at(key).chunks[i].shape == tensor.chunks[i].shape);
      CHECK(read.tensors.at(key).chunks[i].where == tensor.chunks[i].where);
    }
  }
  CHECK(read.objects.at("n.0.k").where == index.objects.at("n.0.k").where);
}

TEST_CASE("the indices of all ranks are one, in which copies are those of the first rank") {
  const CheckpointIndex read = decode_ranks(index_of_ranks());
  const TensorRecord& w = read.tensors.at("w");
  CHECK(w.shape == Dims{4, 6});
  REQUIRE(w.chunks.size() == 2);
  CHECK(w.chunks[0].where == small_index().tensors.at("w").chunks[0].where);
  CHECK(w.chunks[1].where == small_index().tensors.at("w").chunks[1].where);
  const TensorRecord& step = read.tensors.at("optimizer.state.w.step");
  REQUIRE(step.chunks.size() == 1);
  CHECK(step.chunks[0].where == Span{"__0_0.distcp", 2000, 700});
  CHECK(read.objects.at("n.0.k").where == Span{"__0_0.distcp", 3000, 300});
  CHECK(read.objects.at("of rank 1").where == Span{"__1_0.distcp", 4000, 300});
  CHECK(read.paths.at("n.0.k") == small_index().paths.at("n.0.k"));
}

TEST_CASE("indices of ranks that do not fit together are refused") {
  const auto refusal_of_ranks = [](const std::function<void(CheckpointIndex & rank_1)>& change) {
    std::vector<CheckpointIndex> ranks = index_of_ranks();
    change(ranks[1]);
    return refusal([&] { decode_ranks(ranks); });
  };
  CHECK_THAT(
      refusal_of_ranks([](auto& index) { index.tensors.at("w").dtype = Dtype::kInt8; }),
      Catch::Contains("step-7/__1.metadata: the tensor 'w'") && Catch::Contains("two saves are mixed"));
  CHECK_THAT(refusal_of_ranks([](auto& index) { index.tensors.erase("w"); }),
             Catch::Contains("step-7/__0.metadata to step-7/__1.metadata: the tensor 'w'") &&
                 Catch::Contains("a part of the tensor is missing"));
  CHECK_THAT(refusal_of_ranks([](auto& index) {
               index.tensors.at("w").chunks[0].offset = {2, 0};
               index.tensors.at("w").chunks[0].shape = {2, 6};
             }),
             Catch::Contains("overlap"));
  CHECK_THAT(
      refusal_of_ranks(
          [](auto& index) { index.objects["w"] = index.objects.at("n.0.k"), index.tensors.clear(); }),
      Catch::Contains("step-7/__0.metadata to step-7/__1.metadata: 'w' is both a tensor and an object"));
}

TEST_CASE("a key without a path is written with a path of one part") {
  CheckpointIndex index = small_index();
  index.paths.clear();
  CHECK(decode_index(encode_index(index)).paths.at("n.0.k") == KeyPath{"n.0.k"});
}

TEST_CASE("an index that is empty or cut short is refused") {
  const std::string bytes = encode_index(small_index());
  for (size_t length = 0; length < bytes.size(); ++length)
    CHECK_FALSE(is_accepted([&] { decode_index(bytes.substr(0, length)); }));
  CHECK_THAT(refusal([] { decode_index(""); }), Catch::Contains("step-7/.metadata"));
  CHECK_THAT(refusal([] { decode_index("\x80\x02N."); }), Catch::Contains("no torch Metadata object"));
}

TEST_CASE("no flipped bit of .metadata crashes the reader") {
  const std::string bytes = read_file(golden("misc/.metadata"));
  REQUIRE(is_accepted([&] { decode_index(bytes); }));
  for (size_t bit = 0; bit < bytes.size() * 8; bit += 5) {
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    is_accepted([&] { decode_index(damaged); });
  }
}

TEST_CASE("an index with chunks that do not fill their tensors is refused") {
  const auto chunk = [](CheckpointIndex& index, size_t i) -> Chunk& { return index.tensors["w"].chunks[i]; };
  CHECK_THAT(refusal_of([&](auto& index) {
               chunk(index, 1).offset = {2, 0};
             }),
             Catch::Contains("'w'") && Catch::Contains("overlap"));
  CHECK_THAT(refusal_of([&](auto& index) {
               chunk(index, 0).shape = {2, 6};
             }),
             Catch::Contains("hold 18 of its 24 elements"));
  CHECK_THAT(refusal_of([&](auto& index) {
               chunk(index, 1).offset = {4, 0};
             }),
             Catch::Contains("not inside"));
  CHECK_THAT(refusal_of([&](auto& index) {
               chunk(index, 1).shape = {1, INT64_MAX};
             }),
             Catch::Contains("not inside"));
  CHECK_THAT(refusal_of([&](auto& index) {
               chunk(index, 1).offset = {-1, 0};
             }),
             Catch::Contains("from 0 on"));
  CHECK_THAT(refusal_of([&](auto& index) { chunk(index, 1).shape = {1}; }), Catch::Contains("another rank"));
  CHECK_THAT(refusal_of([&](auto& index) {
               chunk(index, 1).offset = {0, 0};
             }),
             Catch::Contains("two places"));
  CHECK_THAT(refusal_of([&](auto& index) {
               index.tensors["w"].shape = {INT64_MAX, INT64_MAX};
             }),
             Catch::Contains("no possible tensor"));
  CHECK_THAT(refusal_of([&](auto& index) { index.tensors["w"].chunks.clear(); }),
             Catch::Contains("hold 0 of its 24"));
  CHECK_THAT(refusal_of([&](auto& index) { index.objects["w"] = index.objects["n.0.k"]; }),
             Catch::Contains("twice"));
  CHECK_THAT(refusal_of([&](auto& index) { chunk(index, 1).where.offset = UINT64_MAX; }),
             Catch::Contains("offset of a _StorageInfo"));
}

TEST_CASE("tilings of every regular kind are accepted and others refused") {
  CHECK(tiles({2, 3}, {{{0, 0}, {1, 3}}, {{1, 0}, {1, 3}}, {{2, 0}, {0, 3}}}));  // with an empty chunk
  CHECK(tiles({4, 4}, {{{2, 2}, {2, 2}}, {{0, 0}, {2, 2}}, {{2, 0}, {2, 2}}, {{0, 2}, {2, 2}}}));  // a grid
  CHECK(tiles({3, 3}, {{{0, 0}, {1, 2}},
                       {{0, 2}, {2, 1}},
                       {{2, 1}, {1, 2}},
                       {{1, 0}, {2, 1}},
                       {{1, 1}, {1, 1}}}));  // a pinwheel
  CHECK_FALSE(
      tiles({3, 3},
            {{{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}}));  // without its middle
  CHECK_FALSE(tiles({2, 2}, {{{0, 0}, {2, 1}}, {{0, 1}, {1, 1}}, {{1, 0}, {1, 1}}}));
  CHECK(tiles({0, 5}, {}));
  CHECK(tiles({}, {{{}, {}}}));
  CHECK_FALSE(tiles({}, {}));
}

TEST_CASE("index fields of another kind are refused and absent ones of old writers are not") {
  const std::string bytes = encode_index(small_index());
  const auto refused = [&](const std::string& from, const std::string& to) {
    return refusal([&] { decode_index(replaced(bytes, from, to)); });
  };
  CHECK_THAT(refused("storage_data", "storage_dat_"), Catch::Contains("lacks the field 'storage_data'"));
  CHECK_THAT(refused("chunks", "chunk_"), Catch::Contains("lacks the field 'chunks'"));
  CHECK_THAT(refused("bfloat16", "bfloat17"), Catch::Contains("it names torch.bfloat17"));
  CHECK_THAT(refused("relative_path", "relative_pat_"), Catch::Contains("relative_path"));
  CHECK(decode_index(replaced(bytes, "1.0.0", "9.9.9")).tensors.size() ==
        2);  // torch looks at no version either
  CHECK(decode_index(replaced(bytes, "storage_meta", "storage_met_")).save_id.empty());
  CHECK(decode_index(replaced(bytes, "planner_data", "planner_dat_")).paths.empty());
}

TEST_CASE("a list of a billion chunks that are not there is refused at once") {
  std::string bytes = encode_index(small_index());
  const size_t key = bytes.find("X\x01\0\0\0w"s);
  CHECK_THAT(refusal([&] { decode_index(std::string(bytes).replace(key + 1, 4, "\xff\xff\xff\x3f")); }),
             Catch::Contains("bytes are wanted"));
  CHECK_THAT(refusal_of([](auto& index) {
               index.tensors["w"].shape = {1'000'000'000, 6};
             }),
             Catch::Contains("hold 24 of its 6000000000"));
}

TEST_CASE("a malicious pickle in place of .metadata or inside it is refused by name") {
  const test::TemporaryFolder folder;
  const auto canary = folder.path() / "canary";
  for (const MaliciousPickle& pickle : malicious_pickles(canary)) {
    CHECK_THAT(refusal([&] { decode_index(pickle.bytes); }),
               Catch::Contains("it names " + pickle.name + ","));
    // As a value that nobody would look at: in place of None, the load_id.
    std::string inside = encode_index(small_index());
    const size_t at = inside.find("load_id") + 7 + (inside[inside.find("load_id") + 7] == 'q' ? 2 : 5);
    REQUIRE(inside[at] == 'N');
    inside.replace(at, 1, pickle.bytes.substr(2, pickle.bytes.size() - 3));
    CHECK_THAT(refusal([&] { decode_index(inside); }), Catch::Contains("it names " + pickle.name + ","));
  }
  CHECK(!std::filesystem::exists(canary));
}

TEST_CASE("an index that Python 3.11.2 pickled is read: it writes enums by getattr") {
  const std::string text =
      read_file(std::filesystem::path(HYPERION_SOURCE_DIR) / "tests/goldens/dcp/python311.metadata", 1 << 20);
  CHECK(decode_index(text).tensors.at("w").shape == Dims{2, 3});
}

TEST_CASE("chunks that share bytes or have more elements than bytes are refused") {
  const auto chunk = [](CheckpointIndex& index, size_t i) -> Chunk& {
    return index.tensors.at("w").chunks[i];
  };
  CHECK_THAT(refusal_of([&](auto& index) {
               chunk(index, 1).where = {"__0_0.distcp", 899, 901};
             }),
             Catch::Contains("overlap at byte 899 of __0_0.distcp"));
  CHECK_THAT(refusal_of([&](auto& index) { index.objects["n.0.k"].where = chunk(index, 0).where; }),
             Catch::Contains("'n.0.k'") && Catch::Contains("overlap"));
  CHECK_THAT(refusal_of([&](auto& index) { chunk(index, 0).where.length = 35; }),
             Catch::Contains("more elements than fit into its 35 bytes of __0_0.distcp"));
}

TEST_CASE("an index in which one value stands for very many is refused in a moment") {
  CHECK(decode_index(shared_tensor(10, 10)).tensors.size() == 10);
  const auto begin = std::clock();
  CHECK_THAT(refusal([&] { decode_index(shared_tensor(100'000, 100'000)); }),
             Catch::Contains("many times larger than the file"));
  CHECK(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC < 5);
}

TEST_CASE("what the indices of all ranks describe has one limit together") {
  const std::string large =
      shared_tensor(600, 1000);  // more than its size allows, within that of a small file
  std::vector<IndexFile> files = {{"__0.metadata", large}};
  CHECK(decode_metadata("step-7", files).tensors.size() == 600);
  files.push_back({"__1.metadata", large});
  CHECK_THAT(refusal([&] { decode_metadata("step-7", files); }),
             Catch::Contains("step-7/__1.metadata: what it describes is many times larger than the file"));
  // PyTorch's need less than their size allows, however many they are.
  std::vector<CheckpointIndex> ranks = index_of_ranks();
  while (ranks.size() < 1000) ranks.push_back(ranks.back());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    ranks[rank].objects.erase("of rank 1");
    ranks[rank].tensors.at("optimizer.state.w.step").chunks[0].where.file =
        fmt::format("__{}_0.distcp", rank);
  }
  CHECK(decode_ranks(ranks).tensors.size() == 2);
}

TEST_CASE("names of files outside the folder are refused") {
  for (const std::string& file :
       {"../x"s, "/etc/passwd"s, "a/b"s, "."s, ".."s, ""s, "a\0b"s, "__0_0.distcp\0"s, std::string(256, 'a')})
    CHECK_THAT(refusal_of([&](auto& index) { index.objects["n.0.k"].where.file = file; }),
               Catch::Contains("'n.0.k'") && Catch::Contains("no plain name"));
}

TEST_CASE("entries that went through a transform are refused by the name of the transform") {
  // The instructions of one more field, before the last SETITEMS BUILD of a _StorageInfo.
  std::string bytes = encode_index(small_index());
  const size_t end = bytes.rfind("ub", bytes.find("storage_meta") - 8);
  bytes.insert(end, "X\x15\0\0\0transform_descriptors](X\x0d\0\0\0stream.zstd/1e"s);
  CHECK_THAT(refusal([&] { decode_index(bytes); }), Catch::Contains("stream.zstd/1"));
}

TEST_CASE("a quarter of a million chunks are written and read in bounded memory") {
  CheckpointIndex index;
  for (int tensor = 0; tensor < 1000; ++tensor) {
    TensorRecord record{Dtype::kFloat32, {250 * 64, 4096}, {}};
    for (int64_t i = 0; i < 250; ++i)
      record.chunks.push_back(
          {{i * 64, 0},
           {64, 4096},
           {fmt::format("__{}_0.distcp", i), static_cast<uint64_t>(tensor) << 24, 1 << 20}});
    index.tensors[fmt::format("optimizer.state.layers.{}.attention.wq.weight.exp_avg", tensor)] =
        std::move(record);
  }
  const std::string bytes = encode_index(index);
  CHECK(bytes.size() < 250'000 * 128);
  const CheckpointIndex read = decode_index(bytes);
  CHECK(read.tensors.size() == 1000);
  CHECK(read.tensors.begin()->second.chunks.size() == 250);
}

}  // namespace hyperion::checkpoint
