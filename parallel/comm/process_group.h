// The process groups of a job: rendezvous, one communicator per mesh dimension, timeouts, and their names.
#pragma once

#include <chrono>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/mailbox.h"
#include "parallel/health/failure_detector.h"
#include "parallel/job/environment.h"
#include "parallel/job/fingerprint.h"
#include "parallel/mesh.h"

namespace hyperion::parallel {

enum class CommBackend { kGloo, kNccl, kFake };  // CPU, CUDA, dry run

struct CommOptions {
  CommBackend backend = CommBackend::kGloo;
  std::chrono::milliseconds init_timeout =
      std::chrono::seconds(300);  // from rendezvous to the end of the first step
  // Once an operation has failed: of a rank to answer the others (docs/faults.md).
  std::chrono::milliseconds response_timeout = kPeerResponseTimeout;
  bool shared_memory =
      true;              // kGloo among ranks of one host: through memory instead of sockets where possible
  int device_index = 0;  // the CUDA device of this rank (kNccl)
  int trace_buffer_size = 20000;  // NCCL flight recorder: operations kept; 0 = off
  std::string trace_prefix{};     // NCCL flight recorder: dump file is <trace_prefix><rank>
  Fingerprint identity{};         // what must be equal on all ranks besides the mesh: configuration, binary
  // Members of a group of the tree that host() is then (parallel/comm/host_tree.h). 0: kHostFanOut over NCCL
  // where there are several hosts; elsewhere host() is one flat group.
  int host_fan_out = 0;
  uint32_t mailbox_pieces = MailboxMemory::kPieces;  // of shared memory between two ranks; tests take fewer
  // The indices in pp groups of the two ranks that have a copy each of a tied table: a group of their own.
  std::optional<std::pair<int, int>> tied{};
};

// The environment variables NCCL's flight recorder and error handling read; set before the first group
// exists, except those that the user has set.
std::map<std::string, std::string> nccl_environment(const CommOptions& options);

// The groups of world, fsdp, dp_replicate, cp, tp, pp and loss, those that stages of a pipeline need besides,
// and with expert parallelism efsdp and ep. Construction is collective: every rank of the world makes the
// same groups in the same order. Dimensions of degree 1 have no connections. Loss shares a communicator with
// world or fsdp where these have the same ranks, but fsdp, dp_replicate, cp, tp, pp, efsdp and ep never share
// with world or with one another, so their traffic does not queue behind another's. Over NCCL, where a
// communicator takes memory of the GPU and connections of its own, world and loss are not made: host() and
// loss_groups() do what they are for.
class ProcessGroups {
 public:
  // Throws Error(kCommunication) when not every rank joins within init_timeout, naming the missing ranks, and
  // Error(kUsage) when they were started as different jobs (parallel/job/rendezvous.h).
  ProcessGroups(const Mesh& mesh, const Environment& environment, const CommOptions& options);
  ~ProcessGroups();

  // Throws Error(kBug) for a dimension that has no group.
  Communicator& get(MeshDim dim) const;
  Communicator& world() const { return get(MeshDim::kWorld); }
  // All ranks, for CPU tensors and text whatever the device. Where tensors go over NCCL, a tree over several
  // hosts (parallel/comm/host_tree.h), shared memory or Gloo on one; otherwise the world group itself.
  Communicator& host() const { return host_ ? *host_ : world(); }
  // The ranks whose token counts and losses add up: the loss group, over NCCL fsdp and then dp_replicate; and
  // then pp.
  ReduceChain loss_groups() const;
  // Every rank: the world group, over NCCL the loss groups and then tp.
  ReduceChain all_ranks() const;
  // For transfers to lower ranks of a pipeline: the pp group, which those to higher ranks use, and over NCCL
  // one more of the same ranks, because there a transfer waits for those before it in its group.
  Communicator& pp_down() const { return pp_down_ ? *pp_down_ : get(MeshDim::kPp); }
  // The ranks that hold different parts of a unit's experts: efsdp, ep, and tp where these divide each of
  // them; none without expert parallelism.
  std::vector<Communicator*> of_experts() const;
  // Of CommOptions::tied, in that order; null: this rank is neither.
  Communicator* tied() const { return tied_.get(); }

  // One more group of all ranks, for CPU tensors and text, with connections and a timeout of its own: for a
  // thread whose exchanges must not mix with training's. Collective.
  std::shared_ptr<Communicator> new_host_group(const std::string& name);

  // Watches the collectives of every group (Communicator::set_observer), also of groups made later. Call
  // before the first operation; the observer may be called from several threads.
  void set_observer(const CommObserver& observer);
  // For every later operation of every group: the trainer calls it after the first step of the run.
  void set_timeout(std::chrono::milliseconds timeout);
  // The others are sent how this rank ends: before it leaves a job that is done, or fails.
  void leave(FailureDetector::End end);
  // Of the first node, where the job has several and its ranks are numbered node by node; 1 where they are
  // not, and on one host.
  int ranks_per_node() const { return ranks_per_node_; }
  // For the log of a start: the interface of this rank and the user's variables; empty where nothing is sent.
  const std::vector<std::string>& network() const { return network_; }

 private:
  // `one_host`: all of `ranks` are on this host.
  std::shared_ptr<Communicator> make_group(const std::string& name, int rank, const std::vector<int>& ranks,
                                           const CommOptions& options, bool one_host);
  std::shared_ptr<Communicator> make_host_group(const std::string& name);
  ReduceChain chain(std::initializer_list<MeshDim> dims) const;  // those of several ranks
  std::vector<Communicator*> all_groups() const;
  // `connections`: what is given up first.
  void find_lost_ranks_when_it_fails(Communicator& group, Communicator* connections);

  CommOptions options_;  // its host_fan_out is what is in use: 0 without a tree
  int ranks_per_node_ = 1;
  const Environment environment_;
  c10::intrusive_ptr<c10d::Store> store_;      // null where nothing is sent
  std::unique_ptr<FailureDetector> detector_;  // the same
  CommObserver observer_;
  std::map<MeshDim, std::shared_ptr<Communicator>> groups_;
  std::shared_ptr<Communicator> host_;            // null: the world group
  std::shared_ptr<Communicator> pp_down_, tied_;  // null: the pp group; none
  std::vector<std::string> network_;
};

}  // namespace hyperion::parallel
