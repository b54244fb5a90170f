// Who holds what, asked for every rank of many meshes.
#include "parallel/placement.h"

#include <algorithm>
#include <map>
#include <utility>

#include <catch2/catch.hpp>

#include "base/parameter.h"

namespace hyperion::parallel {
namespace {

// As the ranks of a tensor parallel group divide it: the index is of some other rank, and is not read.
Parameter divided(std::vector<int64_t> shape, std::optional<int> split, int ranks) {
  const ParameterPtr parameter = make_parameter("w", std::move(shape), Init::ones(), split);
  parameter->shard(ranks, ranks - 1);
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
    const Placement placement = replicated_in_pp_rank(1, mesh, rank);
    CHECK(placement.is_local == (rank >= 24));
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
        const int pp_rank = pp - 1;
        std::map<std::pair<int64_t, int>, int> holders;  // of an element as a replica
        int replicas = 0;
        for (int rank = 0; rank < world; ++rank) {
          const Placement placement = placement_of(parameter, pp_rank, mesh, rank);
          CHECK(placement.is_local == (mesh.coordinate(rank, MeshDim::kPp) == pp_rank));
          // What a rank says by its cuts and pp_rank, it is asked by them.
          CHECK(placement_of(placement.cuts, pp_rank, mesh, rank) == placement);
          replicas = placement.replicas;
          if (!placement.is_local) continue;
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

TEST_CASE("ranks that shard experts hold stretches of their stack in its order, and each element once") {
  struct Case {
    MeshConfig mesh;
    std::vector<int64_t> shape;
    std::vector<Cut> cuts_of_rank_1;  // behind those of ep
  };
  for (const Case& c : {
           Case{{.dp_shard = 4, .ep = 2}, {4, 3, 5}, {{0, 2, 0}}},  // rank 1 is the second of its ep group
           Case{{.dp_shard = 4, .ep = 4}, {8, 3, 5}, {{0, 1, 0}}},
           Case{{.dp_shard = 6, .ep = 2}, {4, 6, 5}, {{0, 3, 0}}},             // the last one has none
           Case{{.dp_shard = 8, .ep = 2}, {2, 6, 5}, {{0, 2, 0}, {1, 2, 0}}},  // of 4 ranks 2 have some
           Case{{.dp_shard = 8, .ep = 2}, {4, 6, 5}, {{0, 2, 0}, {1, 2, 0}}},  // half an expert each
           Case{{.dp_shard = 8, .ep = 2}, {4, 5, 6}, {{0, 4, 0}}},             // 5 rows
           Case{{.dp_replicate = 2, .dp_shard = 4, .ep = 2}, {2, 6, 5}, {{0, 1, 0}, {1, 2, 0}}},
           Case{{.pp = 2, .dp_shard = 2, .tp = 2, .ep = 2}, {2, 4, 5}, {{0, 1, 0}, {1, 2, 0}}},
       }) {
    const int world = c.mesh.pp * c.mesh.dp_replicate * c.mesh.dp_shard * c.mesh.tp;
    const Mesh mesh(c.mesh, world);
    CAPTURE(mesh.describe(), c.shape);
    const ParameterPtr stack = make_parameter("w", c.shape, Init::ones());
    stack->shard_experts(c.mesh.ep, 0);
    std::map<std::pair<int64_t, int>, int> holders;
    std::vector<int64_t> next(c.mesh.ep, 0);  // element of an ep rank's experts
    for (int rank = 0; rank < world; ++rank) {
      const Placement placement = placement_of(*stack, c.mesh.pp - 1, mesh, rank);
      CHECK(placement.domain == Domain::kExpert);
      CHECK(placement_of(placement.cuts, c.mesh.pp - 1, mesh, rank, Domain::kExpert) == placement);
      if (rank == 1)
        CHECK(std::equal(placement.cuts.begin() + 1, placement.cuts.end(), c.cuts_of_rank_1.begin(),
                         c.cuts_of_rank_1.end()));
      if (!placement.is_local) continue;
      const int ep = mesh.coordinate(rank, MeshDim::kEp);
      const int64_t first = ep * stack->rows() * stack->row_numel();
      for_each_run(c.shape, box_of(c.shape, placement.cuts), [&](const Run& run) {
        if (placement.replica == 0)
          CHECK(run.in_tensor == first + std::exchange(next[ep], next[ep] + run.count));
        for (int64_t i = 0; i < run.count; ++i) ++holders[{run.in_tensor + i, placement.replica}];
      });
    }
    CHECK(holders.size() == static_cast<size_t>(stack->numel() * c.mesh.dp_replicate));
    for (const auto& [element, count] : holders) CHECK(count == 1);
  }
}

TEST_CASE("ranks that divide experts, and tensor parallel ones each of them, hold each element once") {
  for (const MeshConfig& config : {MeshConfig{.dp_shard = 2, .tp = 2, .ep = 2, .etp = 2},
                                   {.dp_shard = 4, .tp = 2, .ep = 2, .etp = 2},  // efsdp 2: an expert each
                                   {.dp_shard = 8, .tp = 2, .ep = 2, .etp = 2},  // stretches of one
                                   {.pp = 2, .dp_replicate = 2, .dp_shard = 2, .tp = 4, .ep = 2, .etp = 4},
                                   {.dp_shard = 2, .tp = 2, .ep = 4}})
    for (const int split : {1, 2}) {
      const int world = config.pp * config.dp_replicate * config.dp_shard * config.tp;
      const Mesh mesh(config, world);
      CAPTURE(mesh.describe(), split);
      const ParameterPtr stack = make_parameter("w", {4, 4, 8}, Init::ones(), split);
      stack->shard_experts(config.ep, 0);
      stack->shard(config.etp, 0);
      std::map<std::pair<int64_t, int>, int> holders;
      for (int rank = 0; rank < world; ++rank) {
        const Placement placement = placement_of(*stack, 0, mesh, rank);
        CHECK(placement_of(placement.cuts, 0, mesh, rank, Domain::kExpert) == placement);
        if (!placement.is_local) continue;
        const Box box = box_of(stack->shape, placement.cuts);
        CHECK(box.shape[split] * config.etp ==
              stack->shape[split] / (split == 1 && config.dp_shard == 8 ? 2 : 1));
        for_each_run(stack->shape, box, [&](const Run& run) {
          for (int64_t i = 0; i < run.count; ++i) ++holders[{run.in_tensor + i, placement.replica}];
        });
      }
      CHECK(holders.size() == static_cast<size_t>(stack->numel() * config.dp_replicate));
      for (const auto& [element, count] : holders) CHECK(count == 1);
    }
}

}  // namespace hyperion::parallel
