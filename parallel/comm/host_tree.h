// A HostTree connects all ranks by small groups, for the host side of a job on GPUs: the ranks of a node,
// then their leaders in groups of at most kHostFanOut, then the leaders of these groups. A group over
// sockets connects each member with every other; in a tree the number of sockets per rank is bounded,
// whatever the world size.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/job/environment.h"

namespace c10d {
class Store;
}

namespace hyperion::parallel {

inline constexpr int kHostFanOut = 64;

// A group of the tree, as one of its members sees it. Its leader, member 0, is its lowest rank.
struct HostTreeLevel {
  std::string name;        // "host/0/node/3"; higher levels: "host/0/level/1/0", level and index of the group
  std::vector<int> ranks;  // ascending
  int index = 0;           // position of this rank in `ranks`
  bool one_node = false;
};

// The groups of which `rank` is a member, lowest level first; above the lowest level the members are
// leaders. `ranks_per_node` is 1 if the ranks of a node are not numbered consecutively; the tree then has
// no node groups. Pure.
std::vector<HostTreeLevel> host_tree_plan(const std::string& name, int rank, int world_size,
                                          int ranks_per_node, int fan_out = kHostFanOut);

// Returns whether this rank's position fits a numbering node by node, with `ranks_per_node` on each node but
// the last.
bool placed_node_by_node(const Environment& environment, int ranks_per_node);

// The number of ranks per node (the last node may have fewer), or 1 unless all ranks are numbered node by
// node. Collective: three requests to the store per rank. Throws Error(kCommunication) when a rank does not
// answer before the store's timeout.
int agree_on_ranks_per_node(c10d::Store& store, const Environment& environment);

// One line for the start of the log.
std::string describe_host_tree(const Environment& environment, int ranks_per_node, int fan_out);

// Exchanges integers and texts. An operation is complete when start_ returns. A floating-point sum throws
// Error(kBug), because its order, and so its bits, would depend on the nodes; so do all-gathers and
// reduce-scatters of tensors, which grow with the number of ranks. `levels` are this rank's groups, as
// planned. When an operation fails in one of them, its post-mortem must first abort() the tree, so that the
// ranks of the other groups notice too.
std::unique_ptr<Communicator> make_host_tree(std::string name, int rank, int world_size,
                                             std::vector<std::shared_ptr<Communicator>> levels);

}  // namespace hyperion::parallel
