// The mesh lays the ranks of a job out over named parallel dimensions, and says which ranks form a process
// group. It is pure arithmetic: rank = (((pp * R + dp_replicate) * S + dp_shard) * C + cp) * T + tp. Expert
// weights see the ranks of one dp_shard x cp x tp block as (efsdp * E + ep) * X + etp. If ep is divided by
// node, ep = ep_nodes * ranks of a node + ep_in_node.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace hyperion::parallel {

// Degrees as the user wrote them. dp_shard = -1 takes the ranks that the other degrees leave of the world
// size.
struct MeshConfig {
  int pp = 1;
  int dp_replicate = 1;
  int dp_shard = -1;
  int cp = 1;
  int tp = 1;
  int ep = 1;        // ranks of dp_shard x cp x tp that shard the experts
  int etp = 1;       // ranks that shard each expert: 1 or tp
  int ep_nodes = 1;  // nodes by which the ranks of ep are divided; 1: they are not
};

// The five dimensions of the layout (outermost first; tp is fastest), and the dimensions derived from them.
enum class MeshDim {
  kPp,
  kDpReplicate,
  kDpShard,
  kCp,
  kTp,
  kBatch,  // dp_replicate x dp_shard: ranks that read different data
  kFsdp,   // dp_shard x cp: ranks that shard one copy of the parameters
  kLoss,   // dp_replicate x dp_shard x cp (the flattened HSDP mesh): ranks whose token counts and losses add
           // up
  kWorld,  // every rank
  // The expert layout of dp_shard x cp x tp. With ep = 1 these are not used.
  kEfsdp,  // ranks that shard the same experts
  kEp,     // ranks that hold different experts
  kEtp,    // ranks that shard each expert
  // The parts of ep. If it is not divided by node, these are not used.
  kEpNodes,   // ranks of equal index in each node
  kEpInNode,  // ranks of one node
};
inline constexpr std::array kMeshDims = {
    MeshDim::kPp,    MeshDim::kDpReplicate, MeshDim::kDpShard, MeshDim::kCp,      MeshDim::kTp,
    MeshDim::kBatch, MeshDim::kFsdp,        MeshDim::kLoss,    MeshDim::kWorld,   MeshDim::kEfsdp,
    MeshDim::kEp,    MeshDim::kEtp,         MeshDim::kEpNodes, MeshDim::kEpInNode};

// "pp", "dp_replicate", "dp_shard", "cp", "tp", "batch", "fsdp", "loss", "world", "efsdp", "ep", "etp",
// "ep_nodes", "ep_in_node".
std::string_view name_of(MeshDim dim);

class Mesh {
 public:
  // Resolves dp_shard = -1 and checks that the product of the degrees is world_size, and that ep x etp
  // divides dp_shard x cp x tp, and that ep_nodes divides ep.
  // Throws Error(kUsage) naming all degrees otherwise.
  Mesh(const MeshConfig& config, int world_size);

  int world_size() const { return world_size_; }
  // The number of ranks in a group of this dimension.
  int degree(MeshDim dim) const;
  // This rank's index inside its group of `dim`; for a derived dimension the outer coordinate counts most.
  int coordinate(int rank, MeshDim dim) const;
  // The global ranks of the group that `rank` belongs to, in order of their coordinate.
  std::vector<int> group(int rank, MeshDim dim) const;
  // The index of the rank's group among the world_size / degree groups of `dim`: the row-major index of its
  // other coordinates.
  int slice(int rank, MeshDim dim) const;
  // "fsdp/3": the dimension and the slice.
  std::string group_name(int rank, MeshDim dim) const;

  // Exactly one of the ranks that read the same batch counts its tokens. These say whether `rank` is that
  // one: if counts are summed over dp_replicate, dp_shard, cp and pp (ProcessGroups::loss_groups), or over
  // all ranks.
  bool counts_in_loss_groups(int rank) const;
  bool counts_among_all(int rank) const;

  // "pp 1 x dp_replicate 2 x dp_shard 2 x cp 1 x tp 1 = 4 ranks"; with ep > 1 then "; experts: efsdp 1 x ep 2
  // x etp 1", and with ep_nodes > 1 ", ep over 2 nodes"
  std::string describe() const;

 private:
  const std::array<int, 5>& degrees_of(MeshDim dim) const;

  std::array<int, 5> degrees_;           // pp, dp_replicate, dp_shard, cp, tp
  std::array<int, 5> expert_degrees_{};  // pp, dp_replicate, efsdp, ep, etp
  std::array<int, 5> node_degrees_{};    // pp x dp_replicate, efsdp, ep_nodes, ep_in_node, etp
  int world_size_;
};

}  // namespace hyperion::parallel
