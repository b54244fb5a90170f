#include "parallel/placement.h"

#include <numeric>
#include <span>
#include <utility>

namespace hyperion::parallel {

namespace {

// Into how many stretches of rows each of `experts` matrices is cut for that many ranks.
int64_t stretches_of(int64_t experts, int64_t rows, int64_t ranks) {
  const int64_t both = std::gcd(rows, ranks);
  int64_t stretches = both;
  while (stretches > 1 && (both % stretches != 0 || stretches * experts > ranks)) --stretches;
  return stretches;
}

Placement placement_of_experts(std::vector<Cut> cuts, int home, const Mesh& mesh, int rank) {
  std::span<Cut> left = cuts;
  const auto cut_of = [&](MeshDim dim) {
    left.front().index = mesh.coordinate(rank, dim);
    left = left.subspan(1);
  };
  cut_of(MeshDim::kEp);
  if (mesh.degree(MeshDim::kEtp) > 1) cut_of(MeshDim::kEtp);
  int64_t index = mesh.coordinate(rank, MeshDim::kEfsdp);
  for (; !left.empty(); left = left.first(left.size() - 1)) {
    left.back().index = index % left.back().parts;
    index /= left.back().parts;
  }
  return {.cuts = std::move(cuts),
          .replicas = mesh.degree(MeshDim::kDpReplicate),
          .replica = mesh.coordinate(rank, MeshDim::kDpReplicate),
          .home = home,
          .here = mesh.coordinate(rank, MeshDim::kPp) == home,
          .domain = Domain::kExpert};
}

}  // namespace

Placement placement_of(const Parameter& parameter, int home, const Mesh& mesh, int rank) {
  std::vector<Cut> cuts = parameter.cuts;
  if (parameter.domain == Domain::kExpert) {
    const int64_t ranks = mesh.degree(MeshDim::kEfsdp),
                  stretches = stretches_of(parameter.rows(), parameter.local.at(1), ranks);
    cuts.push_back({.dim = 0, .parts = ranks / stretches});
    if (stretches > 1) cuts.push_back({.dim = 1, .parts = stretches});
  } else {
    cuts.push_back({.dim = 0, .parts = mesh.degree(MeshDim::kFsdp)});
  }
  return placement_of(std::move(cuts), home, mesh, rank, parameter.domain);
}

Placement placement_of(std::vector<Cut> cuts, int home, const Mesh& mesh, int rank, Domain domain) {
  if (cuts.empty()) return replicated_placement(mesh, rank);
  if (domain == Domain::kExpert) return placement_of_experts(std::move(cuts), home, mesh, rank);
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
