// A Communicator runs collectives over one process group. Every tensor that one rank sends to another goes
// through here.
//
// Every rank of the group must issue the same collectives in the same order (base/exchange.h has the rule
// for transfers). `start_x(...)` returns a Pending to wait for; `x(...)`, where it exists, starts and
// waits. On CPU (Gloo, shared memory) wait() blocks the host. On CUDA (NCCL) collectives are enqueued on
// the current stream and wait() does nothing, except that it copies the result of an all-reduce of a host
// tensor back; order other streams by events (base/device/streams.h). All-to-alls and transfers run on a
// stream of NCCL's after the work queued on the current stream, and wait() makes the stream that is current
// then wait for them. One thread at a time may use a communicator. Tensors must be contiguous and on the
// group's device (all-reduces over NCCL take host tensors as well), and must not be touched between start
// and wait.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/collective.h"
#include "base/exchange.h"
#include "parallel/health/lost_ranks.h"

namespace hyperion::parallel {

// An operation that this rank starts, as reported to an observer.
struct CommOperation {
  std::string_view group;  // "fsdp/0"
  // "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send" (receives are not observed), "gather",
  // "broadcast"
  std::string_view name;
  at::ScalarType dtype;
  // Bytes that this rank sends by a ring algorithm, whatever the backend does, for W ranks and B bytes in
  // the full (gathered) tensor: all-gather and reduce-scatter (W-1)/W * B, all-reduce 2 (W-1)/W * B. A
  // gather or broadcast counts each byte once, on the rank that holds it.
  int64_t sent_bytes;
};
using CommObserver = std::function<void(const CommOperation&)>;

// One tensor of an all-gather (out[r] = in of rank r), or of a reduce-scatter (out = sum over ranks r of
// chunk rank() of r's in).
struct CollectivePart {
  at::Tensor out, in;
};

class Communicator : public Coordinator, public Exchange {
 public:
  // `rank`: index in global_ranks.
  Communicator(std::string name, int rank, std::vector<int> global_ranks);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const std::string& name() const { return name_; }  // "fsdp/0"
  int rank() const override { return rank_; }        // this rank's index in the group
  int size() const override { return static_cast<int>(global_ranks_.size()); }
  const std::vector<int>& global_ranks() const { return global_ranks_; }
  virtual std::string_view backend() const = 0;  // "shm", "gloo", "nccl", "fake", "solo"
  // Returns whether every operation accepts CPU tensors.
  virtual bool takes_host_tensors() const { return true; }
  // Returns whether operations progress without this rank waiting for them. If false, its host moves the
  // bytes while it waits for an operation of this group.
  virtual bool makes_async_progress() const { return true; }

  // Gathers several tensors of one dtype as one operation.
  Pending start_all_gather_into(std::vector<CollectivePart> parts) {
    return start_parts(/*gathers=*/true, std::move(parts));
  }
  Pending start_all_gather_into(const at::Tensor& out, const at::Tensor& in) override {
    return start_all_gather_into({{out, in}});
  }
  void all_gather_into(const at::Tensor& out, const at::Tensor& in) { start_all_gather_into(out, in).wait(); }

  // Reduces several tensors of one dtype as one operation. On CPU the terms are added in rank order.
  Pending start_reduce_scatter_sum(std::vector<CollectivePart> parts) {
    return start_parts(/*gathers=*/false, std::move(parts));
  }
  Pending start_reduce_scatter_sum(const at::Tensor& out, const at::Tensor& in) override {
    return start_reduce_scatter_sum({{out, in}});
  }

  Pending start_all_reduce_sum(const at::Tensor& tensor) override {
    return start_all_reduce(tensor, /*max=*/false);
  }
  void all_reduce_sum(const at::Tensor& tensor) { start_all_reduce_sum(tensor).wait(); }
  Pending start_all_reduce_max(const at::Tensor& tensor) override {
    return start_all_reduce(tensor, /*max=*/true);
  }
  void all_reduce_max(const at::Tensor& tensor) { start_all_reduce_max(tensor).wait(); }

  // A size or dtype that differs from the peer's is an error on the receiving rank. NCCL does not notice
  // it: there the group's timeout ends the job.
  Pending start_block_exchange(const at::Tensor& out, const at::Tensor& in,
                               std::span<const RowBlock> out_blocks,
                               std::span<const RowBlock> in_blocks) override;
  Pending start_transfers(std::vector<Transfer> transfers) override;

  // Returns when every rank has arrived. On CUDA it blocks the host.
  void barrier();
  // Texts. Groups without host tensors (NCCL) do not support these: use ProcessGroups::host().
  std::vector<std::string> gather(const std::string& text) override;
  std::string broadcast(const std::string& text) override;

  // Applies to every later operation.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
  // The post-mortem is called after an operation has failed.
  using FindLostRanks = std::function<PostMortem(const std::string& operation, const std::string& phase)>;
  void set_post_mortem(FindLostRanks find) { find_lost_ranks_ = std::move(find); }
  // The observer is called for every later collective of at least one element, on the thread that starts
  // it.
  virtual void set_observer(CommObserver observer) { observer_ = std::move(observer); }
  // Closes connections at once, so that peers notice and operations in flight fail. Does nothing over NCCL:
  // a job that fails leaks its NCCL communicators until the process ends.
  virtual void abort() {}

 protected:
  // A backend implements the do_ functions. Shapes and dtypes are already checked and the tensors are not
  // empty. The returned function (may be null) completes the operation; any exception of either becomes
  // Error(kCommunication).
  using Finish = std::function<void()>;
  // Runs `start` for each part. The returned function completes them in order.
  static Finish for_each_part(const std::vector<CollectivePart>& parts,
                              const std::function<Finish(const CollectivePart&)>& start);

 private:
  virtual Finish do_all_gather(const std::vector<CollectivePart>& parts) = 0;
  virtual Finish do_reduce_scatter_sum(const std::vector<CollectivePart>& parts) = 0;
  virtual Finish do_all_reduce(const at::Tensor& tensor, bool max) = 0;
  virtual Finish do_barrier() = 0;
  // Runs start_block_exchange(). The default copies this rank's blocks and sends the others as messages.
  virtual Finish do_all_to_all(const at::Tensor& out, const at::Tensor& in,
                               std::span<const RowBlock> out_blocks, std::span<const RowBlock> in_blocks);
  // Runs the messages of one operation, including empty ones. With `is_all_to_all` they are the blocks
  // exchanged with other ranks. Groups that move nothing between two ranks do not implement it.
  virtual Finish do_transfers(const std::vector<Transfer>& transfers, bool is_all_to_all);
  // Bytes of texts. do_gather: out[r] = in of rank r on the group's rank 0 (`out` is undefined elsewhere).
  // do_broadcast: rank 0's tensor is copied into every other rank's. Groups that move no text do not
  // implement them.
  virtual Finish do_gather(const at::Tensor& out, const at::Tensor& in);
  virtual Finish do_broadcast(const at::Tensor& tensor);

  Pending start_parts(bool gathers, std::vector<CollectivePart> parts);
  Pending start_all_reduce(const at::Tensor& tensor, bool max);
  // Calls `start` and wraps the function it returns, so that errors name rank, group, operation and phase.
  // `number` counts the group's collectives, or this rank's transfers.
  Pending start_operation(const std::string& operation, int64_t number, const std::function<Finish()>& start);
  Pending start_collective(const char* operation, const std::function<Finish()>& start) {
    return start_operation(operation, ++sequence_, start);
  }
  std::string describe(const std::vector<Transfer>& transfers) const;
  std::vector<std::string> gather_bytes(const std::string& bytes);  // the length is the same on every rank
  void broadcast_bytes(std::string& bytes);
  void notify_observer(const char* operation, at::ScalarType dtype, int64_t sent_bytes) const;
  [[noreturn]] void throw_failure(const std::string& operation, int64_t number, const std::string& phase,
                                  const std::exception& error) const;

  std::string name_;
  int rank_;
  std::vector<int> global_ranks_;
  FindLostRanks find_lost_ranks_;
  CommObserver observer_;
  int64_t sequence_ = 0;   // number of collectives started
  int64_t transfers_ = 0;  // number of start_transfers() calls
};

// A ReduceChain all-reduces over several groups in turn, for ranks that form no group of their own: first
// the ranks that shard one copy of the model, then the replicas. Sums of floats may differ between ranks in
// the last digit.
class ReduceChain {
 public:
  explicit ReduceChain(std::vector<Communicator*> groups) : groups_(std::move(groups)) {}

  void all_reduce_sum(const at::Tensor& tensor) const {
    for (Communicator* group : groups_) group->all_reduce_sum(tensor);
  }
  void all_reduce_max(const at::Tensor& tensor) const {
    for (Communicator* group : groups_) group->all_reduce_max(tensor);
  }

 private:
  std::vector<Communicator*> groups_;
};

// A group of one rank. It sends nothing; an all-gather or reduction copies unless it is in place.
std::unique_ptr<Communicator> make_solo_communicator(std::string name, int global_rank);
// A group of any size in one process, for dry runs. An all-gather copies the input into every chunk, a
// reduce-scatter copies the rank's own chunk, blocks received by an all-to-all or a transfer are zero, and
// every other operation leaves its tensor unchanged. Its observer gets the bytes that a real group would
// send.
std::unique_ptr<Communicator> make_fake_communicator(std::string name, int rank,
                                                     std::vector<int> global_ranks);

}  // namespace hyperion::parallel
