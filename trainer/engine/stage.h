// A Stage holds the units of this rank's pipeline stages (all units without a pipeline), with their
// parameters sharded (FSDP). It offers each operation on a unit as a call of its own: all-gather the weights,
// run forward or backward on a microbatch, reshard, reduce the gradients. A schedule
// (trainer/engine/schedule.h) orders these calls.
//
// Activation checkpointing is part of these calls: a checkpointed block keeps only its input and is
// recomputed in backward. With context parallelism a fully checkpointed block keeps its attention output too.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "models/layers/activation_checkpoint.h"
#include "models/layers/deferred_weights.h"
#include "models/layers/layer_metrics.h"
#include "models/transformer.h"
#include "parallel/fsdp/fsdp.h"
#include "parallel/pipeline/split.h"

namespace hyperion::trainer {

using parallel::UnitRange;

// The forward of one unit saves this for its backward.
struct SavedForward {
  at::Tensor input;   // the unit's input as a detached leaf; undefined for the embedding
  at::Tensor output;  // with its graph, unless the unit is recomputed
  std::unique_ptr<models::SelectiveCheckpoint> selective;
  std::unique_ptr<models::SelectiveCheckpoint> attention;  // BlockRun::attention
  std::unique_ptr<models::KeptRouting> routing;            // for a unit that is recomputed
};

// The state of one microbatch in one stage.
struct MicrobatchState {
  models::Microbatch batch;
  UnitRange units;                                 // of the stage
  std::vector<SavedForward> saved{};               // by unit of the stage; empty: no backward follows
  std::vector<models::DeferredWeights> weights{};  // by unit of the stage: deferred wgrad
  at::Tensor activation{};                         // the input of the next unit's forward
  at::Tensor gradient{};                           // the output gradient for the next unit's backward
  models::LayerMetrics* metrics = nullptr;         // forwards report into it, unless null

  // Returns whether a backward or a deferred wgrad is still to run, or its saved tensors are not freed.
  bool keeps_saved() const;
};

// The shard groups of one unit are gathered and reduced together: its dense parameters, then its experts,
// which another process group shards. Every rank keeps this order.
class UnitGroups {
 public:
  // `experts` is null if the unit has no expert parameters sharded by another process group.
  explicit UnitGroups(parallel::ShardGroup* dense = nullptr, parallel::ShardGroup* experts = nullptr)
      : dense_(dense), experts_(experts) {}

  bool is_local() const { return dense_ != nullptr; }  // false: the unit is another rank's
  const std::string& name() const { return dense_->name(); }
  void start_unshard() const { for_each(&parallel::ShardGroup::start_unshard); }
  void finish_unshard() const { for_each(&parallel::ShardGroup::finish_unshard); }
  void reshard() const { for_each(&parallel::ShardGroup::reshard); }
  void accumulate() const { for_each(&parallel::ShardGroup::accumulate); }
  void reduce(bool last_microbatch) const { for_each(&parallel::ShardGroup::reduce, last_microbatch); }

 private:
  template <typename Method, typename... Args>
  void for_each(Method method, Args... args) const {
    (dense_->*method)(args...);
    if (experts_ != nullptr) (experts_->*method)(args...);
  }

  parallel::ShardGroup *dense_, *experts_;
};

class Stage {
 public:
  // `stages` are ranges of model.units() in ascending order: unit 0 is the embedding, the last unit is the
  // head, every other unit is a block. Shards their parameters over the context's groups and allocates memory
  // for this rank's rows only. `experts` is the context of the experts that an expert parallel group shards,
  // or null.
  Stage(const models::Transformer& model, const std::vector<UnitRange>& stages, parallel::FsdpContext& fsdp,
        models::ActivationCheckpointing checkpointing, parallel::FsdpContext* experts = nullptr);
  // Holds all units of the model.
  Stage(const models::Transformer& model, parallel::FsdpContext& fsdp,
        models::ActivationCheckpointing checkpointing, parallel::FsdpContext* experts = nullptr);

  const models::Transformer& model() const { return model_; }
  bool is_head(size_t unit) const { return unit + 1 == model_.units().size(); }
  bool has_head() const { return by_unit_.back().is_local(); }
  // The shard groups of this rank's units, in ascending order: one or two per unit (UnitGroups).
  const std::vector<std::unique_ptr<parallel::ShardGroup>>& groups() const { return groups_; }
  std::vector<parallel::ShardedParameterPtr> parameters() const;  // every parameter once, in unit order
  std::vector<models::ExpertBalancePtr> balances() const;         // of its MoE blocks
  const parallel::LocalGradients& gradients() const { return gradients_; }  // in unit order

  // Call it after anything has written the masters: it invalidates the caches of layers and all-gathers.
  // Collective if weights are gathered encoded.
  void weights_changed();
  // Call it before the first backward of a step, and when the optimizer has read the gradients. On a GPU it
  // frees their memory; gradients() is then invalid until the last microbatch of the next step is reduced.
  void drop_gradients();

  // `unit` is an index into model.units() in all functions below.
  const UnitGroups& group(size_t unit) const { return by_unit_.at(unit); }
  MicrobatchState start_microbatch(UnitRange units, models::Microbatch batch, bool for_backward,
                                   models::LayerMetrics* metrics = nullptr) const;
  // The shape of the activation between two units: [rows, this rank's tokens of each, dim].
  std::vector<int64_t> boundary_shape(const models::Microbatch& batch) const;
  at::TensorOptions boundary_options() const { return fsdp_.options().computed(); }

  // Runs the embedding or a block. Its weights must be gathered.
  void forward(size_t unit, MicrobatchState& state) const;
  // Returns the summed cross-entropy (0-dim). If a backward follows, it computes the gradient of
  // scale * (loss + z-loss) too: the head runs forward and backward in one call, so that its weights are
  // gathered once. The z-loss is a metric, loss_metrics/z_loss.
  at::Tensor loss(MicrobatchState& state, const at::Tensor& scale) const;
  // Returns the summed cross-entropy of each row, [rows], by a forward of the head for each. Call it before
  // loss().
  at::Tensor losses_of_rows(const MicrobatchState& state) const;
  // Runs the backward of a block, whose weights must be gathered, or of the embedding, which needs no
  // weights. Adds to the weights' .grad().
  void backward(size_t unit, MicrobatchState& state) const;
  // Split backward() into dgrad and wgrad. input_gradient() needs the gathered weights, computes the gradient
  // of the unit's input (none for the embedding) and frees the graph; it leaves the weights' .grad() alone.
  // weight_gradients() adds to .grad().
  void input_gradient(size_t unit, MicrobatchState& state) const;
  void weight_gradients(size_t unit, MicrobatchState& state) const;

  // Completes all reductions started so far.
  void finish_reduction() {
    fsdp_.finish_reduction();
    if (experts_ != nullptr) experts_->finish_reduction();
  }
  bool has_replicated_gradients() const { return fsdp_.tensor() != nullptr; }
  // All-reduces the gradients of parameters that are replicated over the tensor parallel ranks. Call it once
  // per step, when all other reductions are complete.
  void sum_replicated_gradients() const { fsdp_.sum_over_tensor_ranks(gradients_.replicated); }

 private:
  at::Tensor run_block(size_t unit, MicrobatchState& state, const SavedForward& saved,
                       models::BlockRun::Kind kind) const;
  void run_backward(size_t unit, MicrobatchState& state) const;

  const models::Transformer& model_;
  parallel::FsdpContext& fsdp_;
  parallel::FsdpContext* experts_;
  models::ActivationCheckpointing checkpointing_;
  std::vector<std::unique_ptr<parallel::ShardGroup>> groups_;
  std::vector<UnitGroups> by_unit_;  // by unit of the model; is_local() is false for another rank's
  parallel::LocalGradients gradients_;
};

}  // namespace hyperion::trainer
