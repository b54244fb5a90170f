// Fully sharded data parallelism (FSDP2's behaviour), driven step by step: a ShardGroup is one unit's
// parameters, and the trainer's walk tells it when to gather them, when to let them go, and when to reduce
// their gradients. Hybrid sharding (HSDP) and plain replication are the same with another pair of
// communicators.
//
// All reductions are sums: the loss is already divided by the global number of valid tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/sharded_parameter.h"
#include "parallel/streams.h"

namespace hyperion {

// What the groups of one model share: the two communicators, the side streams, and the one reduction under
// way.
class FsdpContext {
 public:
  FsdpContext(Communicator& shard, Communicator& replicate, const ShardingOptions& options);

  Communicator& shard() const { return shard_; }
  Communicator& replicate() const { return replicate_; }
  const ShardingOptions& options() const { return options_; }

  // Called with "gather layers.0", "free layers.0", "reduce layers.0" ... as they are issued (tests,
  // tracing).
  std::function<void(const std::string&)> on_event;
  void event(const char* what, const std::string& group) const {
    if (on_event) on_event(std::string(what) + " " + group);
  }

  // Completes the reduction under way; the compute stream may then read all gradients. Call at the end of
  // backward.
  void finish_reductions();

 private:
  friend class ShardGroup;
  Communicator& shard_;
  Communicator& replicate_;
  ShardingOptions options_;
  DeviceStream gather_stream_, reduce_stream_;
  DeviceEvent reduced_;
  at::Tensor reduce_input_;              // one at a time bounds the memory
  std::function<void()> finish_reduce_;  // waits, adds to the sharded gradients
};

// Brings the encoded wires of `parameters` up to date with their masters: one reduction for all that changed.
// Collective over the shard group.
void encode_changed(const FsdpContext& context, const std::vector<ShardedParameterPtr>& parameters);

class ShardGroup {
 public:
  // Parameters that an earlier group already holds (a tied head) are shared with it; the others become this
  // group's own.
  ShardGroup(std::string name, const std::vector<ParameterPtr>& parameters,
             std::map<const Parameter*, ShardedParameterPtr>& known, FsdpContext& context);

  const std::string& name() const { return name_; }
  const std::vector<ShardedParameterPtr>& parameters() const { return parameters_; }
  const std::vector<ShardedParameterPtr>& owned() const { return owned_; }
  const at::Tensor& owned_grads() const { return grads_; }  // 1-D, padded rows of all own parameters in a row

  // Starts gathering the weights; nothing when they are gathered or on their way.
  void start_unshard();
  // The weights may be read by what the current stream runs next. Starts the gather if nobody has.
  void finish_unshard();
  // Frees the gathered weights.
  void reshard();
  bool unsharded() const { return state_ != State::kSharded; }

  // Sets the sharded gradients to zero, before the first microbatch of a step.
  void zero_grads();
  // Takes the .grad() of the weights and starts adding its sum over the shard group to the sharded gradients.
  // On the last microbatch of a step replicas are summed too.
  void reduce(bool last_microbatch);

  int64_t unsharded_bytes() const;

 private:
  enum class State { kSharded, kGathering, kUnsharded };
  void start_flat_gather(const std::vector<ShardedParameter*>& missing);
  void start_separate_gathers(const std::vector<ShardedParameter*>& missing);
  at::Tensor pack_gradients();
  void add_to_gradients(const at::Tensor& reduced);
  void start_reduce_scatter();
  void sum_replicas();

  std::string name_;
  FsdpContext& context_;
  std::vector<ShardedParameterPtr> parameters_, owned_;
  at::Tensor grads_;
  State state_ = State::kSharded;
  std::vector<Pending> pending_;
  std::function<void()> copy_out_;
  DeviceEvent gathered_;
};

}  // namespace hyperion
