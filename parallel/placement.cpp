#include "parallel/placement.h"

#include <utility>

namespace hyperion::parallel {

Placement placement_of(const Parameter& parameter, int home, const Mesh& mesh, int rank) {
  std::vector<Cut> cuts = parameter.cuts;
  cuts.push_back({.dim = 0, .parts = mesh.degree(MeshDim::kFsdp)});
  return placement_of(std::move(cuts), home, mesh, rank);
}

Placement placement_of(std::vector<Cut> cuts, int home, const Mesh& mesh, int rank) {
  if (cuts.empty()) return replicated_placement(mesh, rank);
  const bool sharded = cuts.back().parts > 1, divided = cuts.size() > 1;
  int replicas = mesh.degree(MeshDim::kDpReplicate), replica = mesh.coordinate(rank, MeshDim::kDpReplicate);
  const auto add_replicas = [&](MeshDim dim) {
    replicas *= mesh.degree(dim);
    replica = replica * mesh.degree(dim) + mesh.coordinate(rank, dim);
  };
  if (sharded)
    cuts.back().index = mesh.coordinate(rank, MeshDim::kFsdp);
  else
    add_replicas(MeshDim::kFsdp);
  if (divided)
    cuts.front().index = mesh.coordinate(rank, MeshDim::kTp);
  else
    add_replicas(MeshDim::kTp);
  return {.cuts = std::move(cuts),
          .replicas = replicas,
          .replica = replica,
          .home = home,
          .here = mesh.coordinate(rank, MeshDim::kPp) == home};
}

Placement replicated_in_stage(int home, const Mesh& mesh, int rank) {
  return placement_of({{.parts = 1}}, home, mesh, rank);
}

Placement replicated_placement(const Mesh& mesh, int rank) {
  return {.cuts = {}, .replicas = mesh.world_size(), .replica = rank};
}

}  // namespace hyperion::parallel
