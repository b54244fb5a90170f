#include "checkpoint/export_safetensors.h"

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "base/files.h"
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

}  // namespace hyperion::checkpoint
