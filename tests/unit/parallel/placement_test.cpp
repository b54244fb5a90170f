// Who holds what, asked for every rank of many meshes.
#include "parallel/placement.h"

#include <map>

#include <catch2/catch.hpp>

namespace hyperion::parallel {
namespace {

// As the ranks of a tensor parallel group divide it: the index is of some other rank, and is not read.
Parameter divided(std::vector<int64_t> shape, std::optional<int> split, int ranks) {
  const ParameterPtr parameter = make_parameter("w", std::move(shape), Init::ones(), split);
  parameter->divide(ranks, ranks - 1);
  return *parameter;
}

}  // namespace

TEST_CASE(
    "replicas of a parameter are those of dp_replicate, and of the tensor parallel group where it does not "
    "divide") {
  const Mesh mesh({.dp_replicate = 2, .dp_shard = 3, .tp = 4}, 24);
  for (int rank = 0; rank < 24; ++rank) {
    const int replicate = rank / 12, shard = rank / 4 % 3, tp = rank % 4;
    const Cut rows = {.parts = 3, .index = shard};
    for (const int dim : {0, 1})
      CHECK(placement_of(divided({8, 6}, dim, 4), 0, mesh, rank) ==
            Placement{
                .cuts = {{.dim = dim, .parts = 4, .index = tp}, rows}, .replicas = 2, .replica = replicate});
    CHECK(placement_of(divided({8}, {}, 4), 0, mesh, rank) ==
          Placement{.cuts = {rows}, .replicas = 8, .replica = replicate * 4 + tp});
    CHECK(replicated_placement(mesh, rank) == Placement{.cuts = {}, .replicas = 24, .replica = rank});
  }
}

TEST_CASE("what all ranks of a stage have in full has as many replicas as the stage has ranks") {
  const Mesh mesh({.pp = 2, .dp_replicate = 2, .dp_shard = 3, .tp = 4}, 48);
  for (int rank = 0; rank < 48; ++rank) {
    const Placement placement = replicated_in_stage(1, mesh, rank);
    CHECK(placement.here == (rank >= 24));
    CHECK(box_of({5}, placement.cuts) == whole_box({5}));
    CHECK(placement.replicas == 24);
    CHECK(placement.replica == rank % 24);
    CHECK(placement_of(placement.cuts, 1, mesh, rank) == placement);
  }
}

TEST_CASE("every element of a parameter is held by as many ranks of its stage as it has replicas") {
  for (const int pp : {1, 2}) {
    for (const MeshConfig& config : std::vector<MeshConfig>{{},
                                                            {.dp_shard = 3},
                                                            {.dp_replicate = 2, .dp_shard = 2},
                                                            {.dp_shard = 1, .tp = 2},
                                                            {.dp_replicate = 2, .dp_shard = 2, .tp = 2},
                                                            {.dp_shard = 2, .cp = 2, .tp = 3}}) {
      MeshConfig with_stages = config;
      with_stages.pp = pp;
      const int world = pp * config.dp_replicate * std::max(1, config.dp_shard) * config.cp * config.tp;
      const Mesh mesh(with_stages, world);
      for (const std::optional<int> split : {std::optional<int>(), std::optional(0), std::optional(1)}) {
        const Parameter parameter = divided({7, 5}, split, config.tp);
        const int home = pp - 1;
        std::map<std::pair<int64_t, int>, int> holders;  // of an element as a replica
        int replicas = 0;
        for (int rank = 0; rank < world; ++rank) {
          const Placement placement = placement_of(parameter, home, mesh, rank);
          CHECK(placement.here == (mesh.coordinate(rank, MeshDim::kPp) == home));
          // What a rank says by its cuts and home, it is asked by them.
          CHECK(placement_of(placement.cuts, home, mesh, rank) == placement);
          replicas = placement.replicas;
          if (!placement.here) continue;
          for_each_run(parameter.shape, box_of(parameter.shape, placement.cuts), [&](const Run& run) {
            for (int64_t i = 0; i < run.count; ++i) ++holders[{run.in_tensor + i, placement.replica}];
          });
        }
        CAPTURE(mesh.describe());
        CHECK(holders.size() == static_cast<size_t>(7 * 5 * replicas));
        for (const auto& [element, count] : holders) CHECK(count == 1);
      }
    }
  }
}

}  // namespace hyperion::parallel
