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
  cuts.back().index = mesh.coordinate(rank, MeshDim::kFsdp);
  const bool divided = cuts.size() > 1;
  if (divided) cuts.front().index = mesh.coordinate(rank, MeshDim::kTp);
  const int tensor_ranks = divided ? 1 : mesh.degree(MeshDim::kTp);
  return {.cuts = std::move(cuts),
          .replicas = mesh.degree(MeshDim::kDpReplicate) * tensor_ranks,
          .replica = mesh.coordinate(rank, MeshDim::kDpReplicate) * tensor_ranks +
                     (divided ? 0 : mesh.coordinate(rank, MeshDim::kTp)),
          .home = home,
          .here = mesh.coordinate(rank, MeshDim::kPp) == home};
}

Placement replicated_placement(const Mesh& mesh, int rank) {
  return {.cuts = {}, .replicas = mesh.world_size(), .replica = rank};
}

}  // namespace hyperion::parallel
