// ProcessGroups creates the process groups of a job: rendezvous, one communicator per mesh dimension,
// timeouts, names.
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
#include "parallel/comm/communicator_memory.h"
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
      std::chrono::seconds(300);  // used from rendezvous to the end of the first step
  // The time in which a rank must answer the others after an operation has failed (docs/faults.md).
  std::chrono::milliseconds response_timeout = kPeerResponseTimeout;
  bool shared_memory = true;  // kGloo: ranks of one host exchange through memory, if possible, not sockets
  int device_index = 0;       // the CUDA device of this rank (kNccl)
  // kNccl: GPU tensors travel through pinned memory and the shared memory of this host, so that several ranks
  // can share a GPU, which NCCL refuses (HYPERION_COMM=staged).
  bool staged = false;
  int trace_buffer_size = 20000;  // NCCL flight recorder: number of recorded operations; 0 = off
  std::string trace_prefix{};     // NCCL flight recorder: dump file is <trace_prefix><rank>
  Fingerprint identity{};         // must be equal on all ranks, like the mesh: configuration, binary
  // Group size of the tree that host() is (parallel/comm/host_tree.h). 0: kHostFanOut over NCCL on several
  // hosts; otherwise host() is one flat group.
  int host_fan_out = 0;
  uint32_t mailbox_pieces = MailboxMemory::kPieces;  // ring size of a mailbox; tests use fewer
  // Indices in the pp group of the two ranks that each hold a copy of the tied embedding: they get a group
  // of their own.
  std::optional<std::pair<int, int>> tied{};
  int pipeline_ctas = kPipelineCtas;    // kNccl: the most thread blocks of a transfer between pipeline stages
  bool chunks_tensor_parallel = false;  // tp ranks exchange chunks that overlap matmuls (kNccl)
};

// Environment variables for NCCL's flight recorder and error handling. They are set before the first group
// exists, except those that the user has set.
std::map<std::string, std::string> nccl_environment(const CommOptions& options);

// The traffic of a dimension's group, from which NCCL's configuration of its communicator follows.
GroupTraffic traffic_of(MeshDim dim, const CommOptions& options);

// Groups exist for world, fsdp, dp_replicate, cp, tp, pp and loss, for pipeline stages that need more, and
// with expert parallelism for efsdp and ep, and for ep_nodes and ep_in_node if ep is divided by node.
// Construction is collective: every rank of the world creates the same groups in the same order. Dimensions
// of degree 1 have no connections. Loss shares a communicator with world or fsdp if these have the same
// ranks. fsdp, dp_replicate, cp, tp, pp, efsdp and ep never share one with world or with each other, so their
// traffic does not queue behind another's. Over NCCL, where each communicator takes GPU memory and
// connections, world and loss are not created: host() and loss_groups() replace them.
class ProcessGroups {
 public:
  // Throws Error(kCommunication) naming the missing ranks if not every rank joins within init_timeout, and
  // Error(kUsage) if they were started as different jobs (parallel/job/rendezvous.h).
  ProcessGroups(const Mesh& mesh, const Environment& environment, const CommOptions& options);
  ~ProcessGroups();

  // Throws Error(kBug) for a dimension that has no group.
  Communicator& get(MeshDim dim) const;
  Communicator& world() const { return get(MeshDim::kWorld); }
  // All ranks, for CPU tensors and text on any device. If tensors go over NCCL: a tree over several hosts
  // (parallel/comm/host_tree.h), shared memory or Gloo on one host. Otherwise the world group itself.
  Communicator& host() const { return host_ ? *host_ : world(); }
  // The ranks whose token counts and losses are summed: the loss group (over NCCL fsdp, then dp_replicate),
  // then pp.
  ReduceChain loss_groups() const;
  // Every rank: the world group (over NCCL the loss groups, then tp).
  ReduceChain all_ranks() const;
  // The group for transfers to lower pipeline ranks. It is the pp group, which also serves transfers to
  // higher ranks; over NCCL it is a second group of the same ranks, because NCCL runs the transfers of one
  // group in order.
  Communicator& pp_down() const { return pp_down_ ? *pp_down_ : get(MeshDim::kPp); }
  // The groups over which a unit's expert weights are sharded: efsdp, ep, and tp if ETP shards each expert.
  // Empty without expert parallelism.
  std::vector<Communicator*> expert_groups() const;
  // The group of CommOptions::tied, in that order; null on other ranks.
  Communicator* tied_group() const { return tied_.get(); }

  // Creates one more group of all ranks for CPU tensors and text, with its own connections and timeout, for
  // a thread whose exchanges must not mix with training's. Collective.
  std::shared_ptr<Communicator> new_host_group(const std::string& name);

  // Observes the collectives of every group (Communicator::set_observer), including groups created later.
  // Call it before the first operation; the observer may be called from several threads.
  void set_observer(const CommObserver& observer);
  // Applies to every later operation of every group. The trainer calls it after the first step of the run.
  void set_timeout(std::chrono::milliseconds timeout);
  // Tells the other ranks how this rank ends, before it leaves a finished job or fails.
  void leave(FailureDetector::End end);
  // The number of ranks on the first node, if the job has several nodes and its ranks are numbered node by
  // node; else 1.
  int ranks_per_node() const { return ranks_per_node_; }
  // Lines for the start of the log: this rank's network interface and the user's variables; empty if
  // nothing is sent.
  const std::vector<std::string>& network() const { return network_; }

 private:
  // `one_host` says that all `ranks` are on this host; over NCCL `traffic` chooses the configuration.
  std::shared_ptr<Communicator> make_group(const std::string& name, int rank, const std::vector<int>& ranks,
                                           const CommOptions& options, bool one_host,
                                           GroupTraffic traffic = GroupTraffic::kCollectives);
  std::shared_ptr<Communicator> make_host_group(const std::string& name);
  ReduceChain chain(std::initializer_list<MeshDim> dims) const;  // skips groups of one rank
  std::vector<Communicator*> all_groups() const;
  // `connections` is aborted first.
  void install_post_mortem(Communicator& group, Communicator* connections);

  CommOptions options_;  // host_fan_out is the value in use: 0 without a tree
  int ranks_per_node_ = 1;
  const Environment environment_;
  c10::intrusive_ptr<c10d::Store> store_;      // null if nothing is sent
  std::unique_ptr<FailureDetector> detector_;  // null if nothing is sent
  CommObserver observer_;
  std::map<MeshDim, std::shared_ptr<Communicator>> groups_;
  std::shared_ptr<Communicator> host_;            // null: host() is the world group
  std::shared_ptr<Communicator> pp_down_, tied_;  // null: pp_down() is the pp group; no tied group
  std::vector<std::string> network_;
};

}  // namespace hyperion::parallel
