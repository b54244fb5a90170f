#include "parallel/placement.h"

#include <numeric>
#include <span>
#include <utility>

namespace hyperion::parallel {

namespace {

Placement placement_of_experts(std::vector<Cut> cuts, int pp_rank, const Mesh& mesh, int rank) {
  std::span<Cut> remaining = cuts;
  const auto set_index = [&](MeshDim dim) {
    remaining.front().index = mesh.coordinate(rank, dim);
    remaining = remaining.subspan(1);
  };
  set_index(MeshDim::kEp);
  if (mesh.degree(MeshDim::kEtp) > 1) set_index(MeshDim::kEtp);
  int64_t index = mesh.coordinate(rank, MeshDim::kEfsdp);
  for (; !remaining.empty(); remaining = remaining.first(remaining.size() - 1)) {
    remaining.back().index = index % remaining.back().parts;
    index /= remaining.back().parts;
  }
  return {.cuts = std::move(cuts),
          .replicas = mesh.degree(MeshDim::kDpReplicate),
          .replica = mesh.coordinate(rank, MeshDim::kDpReplicate),
          .pp_rank = pp_rank,
          .is_local = mesh.coordinate(rank, MeshDim::kPp) == pp_rank,
          .domain = Domain::kExpert};
}

}  // namespace

int64_t parts_per_expert(int64_t experts, int64_t rows, int64_t ranks) {
  const int64_t divisor = std::gcd(rows, ranks);
  int64_t parts = divisor;
  while (parts > 1 && (divisor % parts != 0 || parts * experts > ranks)) --parts;
  return parts;
}

Placement placement_of(const LayerShard& parameter, int pp_rank, const Mesh& mesh, int rank) {
  std::vector<Cut> cuts = parameter.cuts;
  if (parameter.domain == Domain::kExpert) {
    const int64_t ranks = mesh.degree(MeshDim::kEfsdp),
                  parts = parts_per_expert(parameter.rows(), parameter.local.at(1), ranks);
    cuts.push_back({.dim = 0, .parts = ranks / parts});
    if (parts > 1) cuts.push_back({.dim = 1, .parts = parts});
  } else {
    cuts.push_back({.dim = 0, .parts = mesh.degree(MeshDim::kFsdp)});
  }
  return placement_of(std::move(cuts), pp_rank, mesh, rank, parameter.domain);
}

Placement placement_of(std::vector<Cut> cuts, int pp_rank, const Mesh& mesh, int rank, Domain domain) {
  if (cuts.empty()) return replicated_placement(mesh, rank);
  if (domain == Domain::kExpert) return placement_of_experts(std::move(cuts), pp_rank, mesh, rank);
  const bool fsdp_sharded = cuts.back().parts > 1, tp_sharded = cuts.size() > 1;
  int replicas = mesh.degree(MeshDim::kDpReplicate), replica = mesh.coordinate(rank, MeshDim::kDpReplicate);
  const auto add_replicas = [&](MeshDim dim) {
    replicas *= mesh.degree(dim);
    replica = replica * mesh.degree(dim) + mesh.coordinate(rank, dim);
  };
  if (fsdp_sharded)
    cuts.back().index = mesh.coordinate(rank, MeshDim::kFsdp);
  else
    add_replicas(MeshDim::kFsdp);
  if (tp_sharded)
    cuts.front().index = mesh.coordinate(rank, MeshDim::kTp);
  else
    add_replicas(MeshDim::kTp);
  return {.cuts = std::move(cuts),
          .replicas = replicas,
          .replica = replica,
          .pp_rank = pp_rank,
          .is_local = mesh.coordinate(rank, MeshDim::kPp) == pp_rank};
}

Placement replicated_in_pp_rank(int pp_rank, const Mesh& mesh, int rank) {
  return placement_of({{.parts = 1}}, pp_rank, mesh, rank);
}

Placement replicated_placement(const Mesh& mesh, int rank) {
  return {.cuts = {}, .replicas = mesh.world_size(), .replica = rank};
}

}  // namespace hyperion::parallel
