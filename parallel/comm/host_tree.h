// One group of all ranks made of small ones, for the host side of a job on GPUs: the ranks of a node, then
// their leaders in groups of at most kHostFanOut, then the leaders of these. A group over sockets connects
// each member with every other; in a tree no rank has more than some sockets, however many ranks there are.
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
  std::string name;        // "host/0/node/3"; above: "host/0/level/1/0", the level and which of its groups
  std::vector<int> ranks;  // ascending
  int index = 0;           // of this rank in `ranks`
  bool one_node = false;
};

// The groups of `rank`, lowest first: those in which it is a member, which above the lowest are those whose
// members lead. `ranks_per_node`: 1 where the ranks of a node are not numbered one after the other; there is
// no group of a node then. Pure.
std::vector<HostTreeLevel> host_tree_plan(const std::string& name, int rank, int world_size,
                                          int ranks_per_node, int fan_out = kHostFanOut);

// Whether the rank is where the ranks are numbered node by node, with `ranks_per_node` on each but the last.
bool placed_node_by_node(const Environment& environment, int ranks_per_node);

// The number of ranks that every node has, but the last, which may have fewer; 1 unless all ranks are
// numbered node by node. Collective: three requests to the store per rank. Throws Error(kCommunication) when
// a rank does not answer before the store's timeout.
int agree_on_ranks_per_node(c10d::Store& store, const Environment& environment);

// For the log of a start, one line.
std::string describe_host_tree(const Environment& environment, int ranks_per_node, int fan_out);

// Exchanges integers and texts. An operation is complete when it has been started. A sum of floating-point
// numbers is refused as a bug: its order, and so its bits, would depend on the nodes. So are all-gathers and
// reduce-scatters of tensors, which grow with the number of ranks. `levels`: this rank's groups, as planned.
// When an operation fails in one of them, whoever sets its post-mortem has to abort() the tree first: the
// ranks of the others notice then as well.
std::unique_ptr<Communicator> make_host_tree(std::string name, int rank, int world_size,
                                             std::vector<std::shared_ptr<Communicator>> levels);

}  // namespace hyperion::parallel
