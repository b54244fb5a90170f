#include "checkpoint/export_safetensors.h"

#include <cstring>
#include <span>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "base/files.h"
#include "checkpoint/format/safetensors/safetensors_writer.h"
#include "checkpoint/loader.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/checkpoint/mesh_state.h"

namespace hyperion::checkpoint {
namespace {

namespace fs = std::filesystem;

const std::vector<MeshTensor> kModel = {{"table", {17, 5}, 0}, {"wq", {24, 6}, 0},     {"wo", {7, 25}, 1},
                                        {"wk", {24, 6}, 1},    {"cube", {3, 5, 4}, 1}, {"norm", {5}, {}}};

// The file that the ranks of a mesh write together; wq and wk in another order of rows.
std::string exported(const fs::path& folder, const RankMesh& mesh, Dtype dtype) {
  const auto stored_row = [](int64_t row) { return row / 8 * 8 + row % 2 * 4 + row % 8 / 2; };
  test::ThreadRanks::run(mesh.ranks(), [&](Coordinator& ranks) {
    MeshState state(kModel, mesh, ranks.rank());
    state.fill(5);
    const std::vector<TensorState> states = state.tensors();
    std::vector<ExportedTensor> tensors;
    for (const TensorState& tensor : states) {
      tensors.push_back({&tensor, "model." + tensor.key, dtype});
      if (tensor.key == "wq" || tensor.key == "wk") tensors.back().row_map = stored_row;
    }
    MemoryMover mover;
    export_safetensors(1, "export-1", tensors, {}, {}, CheckpointFolder(folder), ranks, mover);
  });
  return read_file(folder / "step-1" / "model.safetensors");
}

}  // namespace

TEST_CASE(
    "safetensors that ranks with tensor parallelism write together equal those of one rank byte for byte") {
  const test::TemporaryFolder folder;
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBFloat16}) {
    const std::string name(torch_name(dtype));
    const std::string one = exported(folder.path() / (name + "-one"), {}, dtype);
    int number = 0;
    for (const RankMesh& mesh : {RankMesh{.shards = 3}, RankMesh{.tensor = 2}, RankMesh{.tensor = 4},
                                 RankMesh{.shards = 2, .tensor = 2}, RankMesh{.shards = 2, .tensor = 3},
                                 RankMesh{.shards = 2, .replicas = 2, .tensor = 2}})
      CHECK(exported(folder.path() / fmt::format("{}-{}", name, number++), mesh, dtype) == one);
  }
}

namespace {

const std::vector<MeshTensor> kStacks = {{"w1", {5, 3, 4}, 1}, {"w3", {5, 3, 4}, 1}};

// w1's matrices one by one, and both stacks transposed in one tensor.
std::vector<ExportedTensor> parts_of(const std::vector<TensorState>& states) {
  std::vector<ExportedTensor> tensors;
  for (int64_t matrix = 0; matrix < 5; ++matrix)
    tensors.push_back(
        {.tensor = &states[0], .name = fmt::format("expert.{}", matrix), .part = {.matrix = matrix}});
  for (const TensorState& state : states)
    tensors.push_back(
        {.tensor = &state, .name = "both", .part = {.width = 6, .first = state.key == "w1" ? 0 : 3}});
  return tensors;
}

float number_at(const CheckpointIndex& index, const std::string& file, const std::string& name,
                int64_t element) {
  float number = 0;
  std::memcpy(&number, file.data() + index.tensors.at(name).chunks.at(0).where.offset + element * 4, 4);
  return number;
}

}  // namespace

TEST_CASE(
    "stacks are written matrix by matrix, or transposed next to each other, and read back on any mesh") {
  const test::TemporaryFolder folder;
  const std::vector<RankMesh> meshes = {
      {}, {.shards = 2}, {.shards = 3, .tensor = 2}, {.shards = 4, .replicas = 2}};
  std::optional<std::string> one;
  for (size_t i = 0; i < meshes.size(); ++i) {
    const fs::path to = folder.path() / std::to_string(i);
    test::ThreadRanks::run(meshes[i].ranks(), [&](Coordinator& ranks) {
      MeshState state(kStacks, meshes[i], ranks.rank());
      state.fill(7);
      const std::vector<TensorState> states = state.tensors();
      MemoryMover mover;
      export_safetensors(1, "export-1", parts_of(states), {}, {}, CheckpointFolder(to), ranks, mover);
    });
    const std::string bytes = read_file(to / "step-1/model.safetensors");
    CHECK(one.value_or(bytes) == bytes);
    one = bytes;
  }
  const OpenCheckpoint stored = open_checkpoint(folder.path() / "0/step-1");
  CHECK(stored.index.tensors.at("both").shape == Dims{5, 4, 6});
  CHECK(number_at(stored.index, *one, "expert.3", 5) == 7 + 3 * 12 + 5);
  CHECK(number_at(stored.index, *one, "both", 2 * 24 + 1 * 6 + 3 + 2) ==
        7 + 2 * 12 + 2 * 4 + 1);  // w3[2, 2, 1]
  TensorRecord by_matrix{Dtype::kFloat32, {5, 3, 4}, {}}, transposed = by_matrix;
  for (int64_t matrix = 0; matrix < 5; ++matrix) {
    Chunk chunk = stored.index.tensors.at(fmt::format("expert.{}", matrix)).chunks.at(0);
    chunk.offset = {matrix, 0, 0};
    chunk.shape = {1, 3, 4};
    by_matrix.chunks.push_back(chunk);
  }
  transposed.chunks = stored.index.tensors.at("both").chunks;
  transposed.chunks[0].shape = transposed.shape;
  transposed.chunks[0].form =
      std::make_shared<const ForeignForm>(ForeignForm{.strides = {24, 1, 6}, .first = 3, .scales = {}});
  StoredNames names{.keys = {{"w1", ""}, {"w3", ""}}};
  names.records = {{"w1", std::make_shared<const TensorRecord>(by_matrix)},
                   {"w3", std::make_shared<const TensorRecord>(transposed)}};
  for (const RankMesh& mesh : meshes)
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      MeshState loaded(kStacks, mesh, rank);
      MemoryMover mover;
      load_tensors(stored, plan_load(stored, loaded.tensors(), names, {}), mover, {});
      CHECK(loaded.holds(7));
    }
}

TEST_CASE("fp8 with a scale for each block is read as the numbers that it stands for") {
  const test::TemporaryFolder folder;
  constexpr int64_t kRows = 5, kColumns = 7, kBlock = 4;
  const std::vector<NamedTensor> tensors = {{"w", Dtype::kFloat8E4M3FN, {kRows, kColumns}},
                                            {"scales", Dtype::kFloat32, {2, 2}}};
  const SafetensorsPlan plan = plan_safetensors(tensors);
  create_safetensors(folder.path(), plan);
  SafetensorsWriter writer(folder.path(), plan);
  const std::vector<float> scales = {1, 2, 0.5F, 4};
  std::string numbers(kRows * kColumns, '\x38');  // 1
  numbers[0] = '\x01';                            // the smallest one, 2^-9
  numbers[1] = '\xfe';                            // -448
  writer.write(0, 0, std::as_bytes(std::span(numbers)));
  writer.write(1, 0, std::as_bytes(std::span(scales)));
  writer.sync();
  const OpenCheckpoint stored = open_checkpoint(folder.path());
  TensorRecord record{Dtype::kFloat32, {kRows, kColumns}, stored.index.tensors.at("w").chunks};
  record.chunks[0].form = std::make_shared<const ForeignForm>(ForeignForm{
      .strides = {}, .scales = stored.index.tensors.at("scales").chunks.at(0).where, .block = kBlock});
  StoredNames names{.keys = {{"w", "w"}}};
  names.records = {{"w", std::make_shared<const TensorRecord>(record)}};
  std::vector<float> loaded(kRows * kColumns);
  TensorState state;
  state.key = "w";
  state.shape = {kRows, kColumns};
  state.data = loaded.data();
  MemoryMover mover;
  load_tensors(stored, plan_load(stored, {state}, names, {}), mover, {});
  CHECK(loaded[0] == 0x1p-9F);
  CHECK(loaded[1] == -448);
  CHECK(loaded[3] == 1);
  CHECK(loaded[4] == 2);
  CHECK(loaded[4 * kColumns + 3] == 0.5F);
  CHECK(loaded[4 * kColumns + 6] == 4);
}

}  // namespace hyperion::checkpoint
