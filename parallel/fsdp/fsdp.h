// Fully sharded data parallelism (FSDP2's behaviour). A ShardGroup holds the parameters of one unit of the
// model, and a schedule (trainer/engine/schedule.h) decides when to all-gather them, when to reshard them and
// when to reduce their gradients. Hybrid sharding (HSDP) and plain replication use another pair of
// communicators.
//
// Under tensor parallelism a unit gathers the weights that this rank's layers read (Parameter::local). The
// gradient of a parameter that is replicated over the tensor parallel ranks is the sum of their gradients.
//
// All reductions are sums: the loss is already divided by the global number of valid tokens. Frozen
// parameters (Parameter::trainable) are gathered, but have no gradients.
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

// The sharded gradients of this rank, with padding of zeros. Each element is in one list only, except copies.
struct LocalGradients {
  // Gradients of parameters that are sharded over the tensor parallel ranks; without tensor parallelism, of
  // all parameters.
  std::vector<at::Tensor> tp_sharded;
  // Gradients of parameters that are replicated over the tensor parallel ranks.
  std::vector<at::Tensor> replicated;
  // Gradients of experts, which another process group shards.
  std::vector<at::Tensor> experts{};
  // Gradients of copies of a tied table. The gradient norm counts them on the stage with the embedding.
  std::vector<at::Tensor> copies{};
};

// ShardGroups over the same ranks share an FsdpContext: the placement of parameters, the communicators, the
// gather and reduce streams, and the one reduction in flight.
class FsdpContext {
 public:
  // Makes the context of `rank` in `mesh`. `tensor` is the tensor parallel group that shards the parameters
  // (Parameter::cuts), or null.
  FsdpContext(const Mesh& mesh, int rank, Communicator& shard, Communicator& replicate,
              const ShardingOptions& options, Communicator* tensor = nullptr);
  // Makes the context of experts that the ranks of `shard` shard. It shares replicas and streams with `dense`
  // and has a reduction of its own in flight.
  FsdpContext(const FsdpContext& dense, Communicator& shard);

  Communicator& shard() const { return shard_; }
  Communicator& replicate() const { return replicate_; }
  Communicator* tensor() const { return tensor_; }
  const ShardingOptions& options() const { return options_; }
  // Returns the placement of a parameter of this rank's stage.
  Placement placement(const Parameter& parameter) const {
    return placement_of(parameter, mesh_.coordinate(rank_, MeshDim::kPp), mesh_, rank_);
  }

  // Completes the reduction in flight, if there is one. Later work of the compute stream may read all
  // gradients that were reduced so far. Call it at the end of a step's last backward.
  void finish_reduction();

  // Sums LocalGradients::replicated over the tensor parallel ranks, as one tensor in their dtype. Call it
  // once per step, when all other reductions are complete.
  void sum_over_tensor_ranks(const std::vector<at::Tensor>& replicated) const;

 private:
  friend class ShardGroup;
  // A reduce-scatter, or an all-reduce over the replicas. One at a time bounds the memory of its buffers.
  struct Reduction {
    ShardGroup* group;
    const char* range;  // the trace range of waiting for it
    Pending operation;
    std::vector<at::Tensor> sent;  // inputs of the reduce-scatter, kept until the compute stream has waited
    at::Tensor local_sum;          // to be added to the gradients; undefined if it is written into them
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

// Encodes the all-gather inputs of the `parameters` whose masters have changed, with one all-reduce of all
// their maxima. Collective over the fsdp group and the tensor parallel ranks.
void encode_changed_weights(const FsdpContext& context, const std::vector<ShardedParameterPtr>& parameters);

class ShardGroup {
 public:
  // The group shares parameters in `known`, which an earlier group holds (a tied head), and owns all other
  // parameters. `copies` are the parameters of LocalGradients::copies.
  ShardGroup(std::string name, const std::vector<ParameterPtr>& parameters,
             std::map<const Parameter*, ShardedParameterPtr>& known, FsdpContext& context,
             const std::set<const Parameter*>& copies = {});

  const std::string& name() const { return name_; }
  const std::vector<ShardedParameterPtr>& parameters() const { return parameters_; }
  const std::vector<ShardedParameterPtr>& owned() const { return owned_; }
  // Returns views of one tensor, one per run of owned trainable parameters of the same list.
  const LocalGradients& local_gradients() const { return local_gradients_; }

  // Starts the all-gather of the weights unless they are gathered or in flight.
  void start_unshard();
  // Makes the current stream wait for the weights. Starts the all-gather if it has not been started.
  void finish_unshard();
  // Frees the gathered weights.
  void reshard();

  // Starts a step: the next reduce() writes the gradients instead of adding to them. On a GPU drop_grads()
  // frees the sharded gradients, and nothing may read them until they have been reduced.
  void drop_grads();
  // Adds the .grad() of the weights to unsharded fp32 sums, which the next reduce() sends. It does not
  // communicate. With one shard it adds to the sharded gradients at once. If reduce() sends a .grad() as it
  // is, the sum stays there, and layers whose products can add to it do.
  void accumulate();
  // Takes the .grad() of the weights and the sums of accumulate(), and starts their reduce-scatter over the
  // fsdp group. The first reduce() of a step writes the sharded gradients, and later ones add to them. In the
  // last microbatch it sums over the replicas too. The parameters alone determine which tensors it sends.
  void reduce(bool last_microbatch);

 private:
  friend class FsdpContext;
  enum class State { kSharded, kGathering, kUnsharded };
  // A reduce-scatter sends each part as one tensor: the packed gradients of trained_[first, last), or the
  // gradient of one parameter as it is.
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
  std::vector<ShardedParameterPtr> trained_, owned_trained_;  // the trainable parameters of each
  at::Tensor grads_;                                          // 1-D, the padded rows of owned_trained_
  LocalGradients local_gradients_;
  std::vector<SentPart> sent_parts_;  // of trained_, in order
  std::vector<at::Tensor> sums_;      // accumulate()'s sums by packed part; undefined: none
  at::Tensor zeros_;                  // the padding behind shards in a pack, in the compute dtype
  State state_ = State::kSharded;
  Pending all_gather_;  // in flight
  DeviceEvent gathered_;
};

}  // namespace hyperion::parallel
