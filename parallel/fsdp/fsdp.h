// Fully sharded data parallelism (FSDP2's behaviour), driven step by step: a ShardGroup is the parameters of
// one unit of the model, and a schedule (trainer/engine/schedule.h) decides when to all-gather them, when to
// free them, and when to reduce their gradients. Hybrid sharding (HSDP) and plain replication are the same
// with another pair of communicators.
//
// Under tensor parallelism the weights of a unit are those that this rank's layers read (Parameter::local);
// what every tensor parallel rank has in full has a gradient that is the sum of theirs.
//
// All reductions are sums: the loss is already divided by the global number of valid tokens. Frozen
// parameters (Parameter::trainable) are gathered and have no place in gradients and reductions.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/device/streams.h"
#include "parallel/comm/communicator.h"
#include "parallel/fsdp/sharded_parameter.h"
#include "parallel/placement.h"

namespace hyperion::parallel {

class ShardGroup;

// The sharded gradients of this rank, padding included (its values are zero); each element once, but for
// copies.
struct LocalGradients {
  // Gradients of parameters that are divided over the tensor parallel ranks; without these, of all.
  std::vector<at::Tensor> divided;
  // Gradients of parameters that every tensor parallel rank has in full; sharded over fsdp as the others.
  std::vector<at::Tensor> replicated;
  // Gradients of experts that other ranks shard than the other parameters.
  std::vector<at::Tensor> experts{};
  // Gradients of copies, which count where another pipeline stage has the parameter (a tied table).
  std::vector<at::Tensor> copies{};
};

// What ShardGroups over the same ranks share: which part of a parameter each rank holds, the communicators,
// the gather and reduce streams, and the one reduction in flight.
class FsdpContext {
 public:
  // As `rank` of `mesh`. `tensor`: the ranks that have divided the parameters (Parameter::cuts); null: none.
  FsdpContext(const Mesh& mesh, int rank, Communicator& shard, Communicator& replicate,
              const ShardingOptions& options, Communicator* tensor = nullptr);
  // Of experts, which the ranks of `shard` share: with the replicas and streams of the other parameters'
  // context, and a reduction of its own in flight.
  FsdpContext(const FsdpContext& dense, Communicator& shard);

  Communicator& shard() const { return shard_; }
  Communicator& replicate() const { return replicate_; }
  Communicator* tensor() const { return tensor_; }
  const ShardingOptions& options() const { return options_; }
  // Of a parameter of this rank's stage.
  Placement placement(const Parameter& parameter) const {
    return placement_of(parameter, mesh_.coordinate(rank_, MeshDim::kPp), mesh_, rank_);
  }

  // Completes the reduction in flight, if there is one; what the compute stream runs next may read all
  // gradients that were reduced so far. Call at the end of a step's last backward.
  void finish_reduction();

  // Adds up LocalGradients::replicated over the tensor parallel ranks, as one tensor in their dtype. Once a
  // step, when all other sums are complete.
  void sum_over_tensor_ranks(const std::vector<at::Tensor>& replicated) const;

 private:
  friend class ShardGroup;
  // A reduce-scatter, or an all-reduce over the replicas. One at a time bounds the memory of its buffers.
  struct Reduction {
    ShardGroup* group;
    const char* range;  // of waiting for it
    Pending operation;
    std::vector<at::Tensor> sent;  // by the reduce-scatter, kept until the compute stream has waited
    at::Tensor local_sum;          // still to be added to the gradients; undefined where it is in them
  };
  void complete_on_reduce_stream(Reduction& reduction);

  Mesh mesh_;
  int rank_;
  Communicator& shard_;
  Communicator& replicate_;
  Communicator* tensor_;
  ShardingOptions options_;
  DeviceStream gather_stream_, reduce_stream_;
  std::optional<Reduction> in_flight_;
  DeviceEvent reduced_;
};

// Encodes the all-gather inputs of those `parameters` whose masters have changed since: one all-reduce of
// their maxima for all of them. Collective over the fsdp group and the tensor parallel ranks.
void encode_changed_weights(const FsdpContext& context, const std::vector<ShardedParameterPtr>& parameters);

class ShardGroup {
 public:
  // Parameters that an earlier group already holds (a tied head) are shared with it; the others become this
  // group's own. `copies`: those of LocalGradients::copies.
  ShardGroup(std::string name, const std::vector<ParameterPtr>& parameters,
             std::map<const Parameter*, ShardedParameterPtr>& known, FsdpContext& context,
             const std::set<const Parameter*>& copies = {});

  const std::string& name() const { return name_; }
  const std::vector<ShardedParameterPtr>& parameters() const { return parameters_; }
  const std::vector<ShardedParameterPtr>& owned() const { return owned_; }
  // Views of one tensor, one per run of own trainable parameters of a kind.
  const LocalGradients& local_gradients() const { return local_gradients_; }

  // Starts the all-gather of the weights; does nothing when they are gathered or in flight.
  void start_unshard();
  // What the current stream runs next may read the weights. Starts the all-gather if it has not been started.
  void finish_unshard();
  // Frees the gathered weights.
  void reshard();

  // The next reduce() is the first one of a step. On a GPU it also frees the sharded gradients: nothing may
  // read them until they have been reduced.
  void drop_grads();
  // Keeps the .grad() of the weights for the next reduce(), which sends the sum of all that was kept. Without
  // communication; the sums are fp32, as large as the unsharded weights of this rank. Where reduce() sends a
  // .grad() as it is, the sum stays there, and layers whose products can add to it do. With one shard it is
  // added to the gradients at once.
  void accumulate();
  // Takes the .grad() of the weights, and what accumulate() has kept, and starts adding its sum over the fsdp
  // group to the sharded gradients; the first one of a step they become. On the last one replicas are summed
  // too. Which tensors it sends follows from the parameters alone.
  void reduce(bool last_microbatch);

 private:
  friend class FsdpContext;
  enum class State { kSharded, kGathering, kUnsharded };
  // What a reduce-scatter sends as one tensor: the gradients of trained_[first, last) packed, or that of one
  // parameter as it is.
  struct SentPart {
    size_t first, last;
    bool packed;
  };
  void make_local_gradients(const std::set<const Parameter*>& copies);
  void choose_gradient_dtypes(const std::vector<ParameterPtr>& parameters) const;
  void plan_parts();
  std::vector<at::Tensor> take_gradients();
  at::Tensor empty_pack(const SentPart& part, at::ScalarType dtype) const;
  void pack_gradients(const SentPart& part, const at::Tensor& packed, bool add);
  bool reduces_into_gradients() const;
  void add_to_sharded_gradients(const at::Tensor& local_sum);
  void start_reduce_scatter();
  void start_replica_all_reduce();

  std::string name_;
  FsdpContext& context_;
  std::vector<ShardedParameterPtr> parameters_, owned_;
  std::vector<ShardedParameterPtr> trained_, owned_trained_;  // the trainable ones of those
  at::Tensor grads_;                                          // 1-D, the padded rows of owned_trained_
  LocalGradients local_gradients_;
  std::vector<SentPart> sent_parts_;  // of trained_, in order
  std::vector<at::Tensor> sums_;      // that accumulate() keeps of each packed part; undefined: none
  at::Tensor zeros_;                  // in the compute dtype: what lies behind shards in a pack
  State state_ = State::kSharded;
  Pending all_gather_;  // in flight
  DeviceEvent gathered_;
};

}  // namespace hyperion::parallel
