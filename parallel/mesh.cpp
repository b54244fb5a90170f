#include "parallel/mesh.h"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace hyperion::parallel {
namespace {

// The layout dimensions that a (derived) dimension spans: [first, end) of the degrees, outermost first.
struct Span {
  MeshDim dim;
  std::string_view name;
  int first, end;
  enum { kDense, kExperts, kNodes } layout = kDense;  // whose degrees they are
};
constexpr std::array<Span, kMeshDims.size()> kSpans = {
    {{MeshDim::kPp, "pp", 0, 1},
     {MeshDim::kDpReplicate, "dp_replicate", 1, 2},
     {MeshDim::kDpShard, "dp_shard", 2, 3},
     {MeshDim::kCp, "cp", 3, 4},
     {MeshDim::kTp, "tp", 4, 5},
     {MeshDim::kBatch, "batch", 1, 3},
     {MeshDim::kFsdp, "fsdp", 2, 4},
     {MeshDim::kLoss, "loss", 1, 4},
     {MeshDim::kWorld, "world", 0, 5},
     {MeshDim::kEfsdp, "efsdp", 2, 3, Span::kExperts},
     {MeshDim::kEp, "ep", 3, 4, Span::kExperts},
     {MeshDim::kEtp, "etp", 4, 5, Span::kExperts},
     {MeshDim::kEpNodes, "ep_nodes", 2, 3, Span::kNodes},
     {MeshDim::kEpInNode, "ep_in_node", 3, 4, Span::kNodes}}};

constexpr const Span& span_of(MeshDim dim) {
  return kSpans[static_cast<size_t>(dim)];
}
static_assert(std::ranges::all_of(kMeshDims, [](MeshDim dim) { return span_of(dim).dim == dim; }),
              "the rows are not in the order of MeshDim");

constexpr std::array kLayout = {MeshDim::kPp, MeshDim::kDpReplicate, MeshDim::kDpShard, MeshDim::kCp,
                                MeshDim::kTp};

std::array<int, 5> coordinates_of(int rank, const std::array<int, 5>& degrees) {
  std::array<int, 5> coordinates{};
  for (int i = 4; i >= 0; --i) {
    coordinates[i] = rank % degrees[i];
    rank /= degrees[i];
  }
  return coordinates;
}

int rank_of(const std::array<int, 5>& coordinates, const std::array<int, 5>& degrees) {
  int rank = 0;
  for (int i = 0; i < 5; ++i) rank = rank * degrees[i] + coordinates[i];
  return rank;
}

std::string product_text(const std::array<int, 5>& degrees) {
  std::vector<std::string> factors;
  for (const MeshDim dim : kLayout)
    factors.push_back(fmt::format("{} {}", name_of(dim), degrees[span_of(dim).first]));
  return fmt::format("{}", fmt::join(factors, " x "));
}

}  // namespace

std::string_view name_of(MeshDim dim) {
  return span_of(dim).name;
}

Mesh::Mesh(const MeshConfig& config, int world_size)
    : degrees_{config.pp, config.dp_replicate, config.dp_shard, config.cp, config.tp},
      world_size_(world_size) {
  if (world_size < 1) throw_config("the job has {} ranks, expected at least 1", world_size);
  int64_t other_degrees =
      1;  // the product of all but dp_shard; stops growing once it exceeds any sensible world
  int& shard = degrees_[span_of(MeshDim::kDpShard).first];
  for (const MeshDim dim : kLayout) {
    const bool is_shard = dim == MeshDim::kDpShard;
    if (degree(dim) < 1 && !(is_shard && shard == -1)) {
      throw_config("mesh {}: {} is {}, expected a degree of at least 1{}", product_text(degrees_),
                   name_of(dim), degree(dim), is_shard ? " or -1 for the rest of the ranks" : "");
    }
    if (!is_shard && other_degrees <= world_size) other_degrees *= degree(dim);
  }
  if (shard == -1) {
    if (other_degrees > world_size)
      throw_config(
          "world size {} is less than pp x dp_replicate x cp x tp (mesh {}); change the degrees or the "
          "number of ranks",
          world_size, product_text(degrees_));
    if (world_size % other_degrees != 0)
      throw_config(
          "world size {} is not divisible by pp x dp_replicate x cp x tp = {} (mesh {}); change the degrees "
          "or the number of ranks",
          world_size, other_degrees, product_text(degrees_));
    shard = static_cast<int>(world_size / other_degrees);
  }
  if (other_degrees > world_size || other_degrees * shard != world_size) {
    throw_config(
        "world size {} is not the product of the mesh {}; change the degrees (dp_shard = -1 takes the rest) "
        "or the number of ranks",
        world_size, product_text(degrees_));
  }
  const int64_t block = int64_t{shard} * config.cp * config.tp, parts = int64_t{config.ep} * config.etp;
  if (config.ep < 1 || config.etp < 1 || block % parts != 0)
    throw_config(
        "mesh {}: ep {} x etp {} must divide dp_shard x cp x tp, {} ranks; change the degrees of experts",
        product_text(degrees_), config.ep, config.etp, block);
  if (config.ep_nodes < 1 || config.ep % config.ep_nodes != 0)
    throw_config("mesh {}: ep {} does not divide evenly over {} nodes", product_text(degrees_), config.ep,
                 config.ep_nodes);
  expert_degrees_ = {config.pp, config.dp_replicate, static_cast<int>(block / parts), config.ep, config.etp};
  node_degrees_ = {config.pp * config.dp_replicate, expert_degrees_[2], config.ep_nodes,
                   config.ep / config.ep_nodes, config.etp};
}

const std::array<int, 5>& Mesh::degrees_of(MeshDim dim) const {
  switch (span_of(dim).layout) {
    case Span::kExperts:
      return expert_degrees_;
    case Span::kNodes:
      return node_degrees_;
    case Span::kDense:
      break;
  }
  return degrees_;
}

int Mesh::degree(MeshDim dim) const {
  int degree = 1;
  for (int i = span_of(dim).first; i < span_of(dim).end; ++i) degree *= degrees_of(dim)[i];
  return degree;
}

int Mesh::coordinate(int rank, MeshDim dim) const {
  const auto& degrees = degrees_of(dim);
  const auto coordinates = coordinates_of(rank, degrees);
  int index = 0;
  for (int i = span_of(dim).first; i < span_of(dim).end; ++i) index = index * degrees[i] + coordinates[i];
  return index;
}

std::vector<int> Mesh::group(int rank, MeshDim dim) const {
  const auto& degrees = degrees_of(dim);
  auto coordinates = coordinates_of(rank, degrees);
  std::vector<int> ranks(degree(dim));
  for (size_t member = 0; member < ranks.size(); ++member) {
    int rest = static_cast<int>(member);
    for (int i = span_of(dim).end - 1; i >= span_of(dim).first; --i) {
      coordinates[i] = rest % degrees[i];
      rest /= degrees[i];
    }
    ranks[member] = rank_of(coordinates, degrees);
  }
  return ranks;
}

int Mesh::slice(int rank, MeshDim dim) const {
  auto degrees = degrees_of(dim);
  auto coordinates = coordinates_of(rank, degrees);
  for (int i = span_of(dim).first; i < span_of(dim).end; ++i) {
    coordinates[i] = 0;
    degrees[i] = 1;
  }
  return rank_of(coordinates, degrees);
}

std::string Mesh::group_name(int rank, MeshDim dim) const {
  return fmt::format("{}/{}", name_of(dim), slice(rank, dim));
}

bool Mesh::counts_in_loss_groups(int rank) const {
  return coordinate(rank, MeshDim::kPp) == 0 && coordinate(rank, MeshDim::kCp) == 0;
}

bool Mesh::counts_among_all(int rank) const {
  return counts_in_loss_groups(rank) && coordinate(rank, MeshDim::kTp) == 0;
}

std::string Mesh::describe() const {
  const std::string experts =
      degree(MeshDim::kEp) == 1
          ? ""
          : fmt::format("; experts: efsdp {} x ep {} x etp {}{}", degree(MeshDim::kEfsdp),
                        degree(MeshDim::kEp), degree(MeshDim::kEtp),
                        degree(MeshDim::kEpNodes) == 1
                            ? ""
                            : fmt::format(", ep over {} nodes", degree(MeshDim::kEpNodes)));
  return fmt::format("{} = {} rank{}{}", product_text(degrees_), world_size_, world_size_ == 1 ? "" : "s",
                     experts);
}

}  // namespace hyperion::parallel
