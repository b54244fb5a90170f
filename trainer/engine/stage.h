// The units of this rank's pipeline stages (all of the model's without a pipeline) with their parameters
// sharded (FSDP), and what is done with a unit as steps of their own: gather its weights, run it forward or
// backward on a microbatch, free its weights, reduce its gradients. Their order is a schedule's
// (trainer/engine/schedule.h).
//
// Activation checkpointing is part of the steps: of a checkpointed block only the input is kept, and the
// block is run again in backward. With context parallelism a fully checkpointed block keeps the result of its
// attention too.
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

// What the forward of one unit leaves for its backward.
struct SavedForward {
  at::Tensor input;   // the unit's input as a detached leaf; of the embedding none
  at::Tensor output;  // with its graph, unless the unit is run again
  std::unique_ptr<models::SelectiveCheckpoint> selective;
  std::unique_ptr<models::SelectiveCheckpoint> attention;  // BlockRun::attention
  std::unique_ptr<models::KeptRouting> routing;            // of a unit that is run again
};

// One microbatch in one stage.
struct Slot {
  models::Microbatch batch;
  UnitRange units;                    // of the stage
  std::vector<SavedForward> saved{};  // by unit of the stage; without elements nothing is saved: no backward
  std::vector<models::DeferredWeights> weights{};  // by unit of the stage: what a divided backward has left
  at::Tensor activation{};                         // what the next unit's forward is given
  at::Tensor gradient{};                           // what the next unit's backward is given
  models::LayerMetrics* metrics = nullptr;         // of forwards; null: none

  // Whether a backward or weight gradients are missing, or were not given back.
  bool keeps_saved() const;
};

// What is gathered, used and reduced with one unit: its parameters, and experts that other ranks shard. On
// every rank in this order.
class UnitGroups {
 public:
  // experts: null where none of the unit's parameters is sharded apart.
  explicit UnitGroups(parallel::ShardGroup* dense = nullptr, parallel::ShardGroup* experts = nullptr)
      : dense_(dense), experts_(experts) {}

  bool here() const { return dense_ != nullptr; }  // not another rank's
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
  // `stages`: units of model.units() in ascending order: 0 is the embedding, the last one the head, a block
  // each between. Shards their parameters over the context's groups: memory for this rank's rows only is
  // allocated. `experts`: the context of those that an expert parallel group divides; null without one.
  Stage(const models::Transformer& model, const std::vector<UnitRange>& stages, parallel::FsdpContext& fsdp,
        models::ActivationCheckpointing checkpointing, parallel::FsdpContext* experts = nullptr);
  // All units.
  Stage(const models::Transformer& model, parallel::FsdpContext& fsdp,
        models::ActivationCheckpointing checkpointing, parallel::FsdpContext* experts = nullptr);

  const models::Transformer& model() const { return model_; }
  bool is_head(size_t unit) const { return unit + 1 == model_.units().size(); }
  bool has_head() const { return by_unit_.back().here(); }
  // Of the units that are here, in ascending order: one of each, or two (UnitGroups).
  const std::vector<std::unique_ptr<parallel::ShardGroup>>& groups() const { return groups_; }
  std::vector<parallel::ShardedParameterPtr> parameters() const;  // every parameter once, in unit order
  std::vector<models::ExpertBalancePtr> balances() const;         // of its blocks that have experts
  const parallel::LocalGradients& gradients() const { return gradients_; }  // of all of them, by unit

  // Call after anything has written the masters: what layers and all-gathers keep of the old ones becomes
  // invalid. Collective when weights are gathered encoded.
  void weights_changed();
  // Before the first backward of a step, and when the optimizer has read them: on a GPU the gradients' memory
  // is freed, and gradients() is not valid until the last microbatch of the next step has been reduced.
  void drop_gradients();

  // `unit` in all of these: its index in model.units().
  const UnitGroups& group(size_t unit) const { return by_unit_.at(unit); }
  Slot slot(UnitRange units, models::Microbatch batch, bool for_backward,
            models::LayerMetrics* metrics = nullptr) const;
  // Of what passes from one unit to the next: [rows, this rank's tokens of each, dim].
  std::vector<int64_t> boundary_shape(const models::Microbatch& batch) const;
  at::TensorOptions boundary_options() const { return fsdp_.options().computed(); }

  // The embedding's or a block's, whose weights are gathered.
  void forward(size_t unit, Slot& slot) const;
  // The summed cross-entropy (0-dim). With a slot for a backward it leaves the gradient of scale * loss too:
  // the head's forward and backward are one call, so that its weights are gathered once.
  at::Tensor loss(Slot& slot, const at::Tensor& scale) const;
  // A block's, whose weights are gathered, or the embedding's, which reads none. Adds to the weights'
  // .grad().
  void backward(size_t unit, Slot& slot) const;
  // The same as two calls. The first one needs the weights, makes the gradient of the unit's input, and
  // leaves no graph; the embedding's makes nothing. The second one adds to the weights' .grad(), which have
  // been left as they were.
  void input_gradient(size_t unit, Slot& slot) const;
  void weight_gradients(size_t unit, Slot& slot) const;

  // Complete after this: the gradients that have been reduced so far.
  void finish_reduction() {
    fsdp_.finish_reduction();
    if (experts_ != nullptr) experts_->finish_reduction();
  }
  bool has_replicated_gradients() const { return fsdp_.tensor() != nullptr; }
  // Adds up what tensor parallel ranks do not divide. Once a step, when all other sums are complete.
  void sum_replicated_gradients() const { fsdp_.sum_over_tensor_ranks(gradients_.replicated); }

 private:
  at::Tensor run_block(size_t unit, Slot& slot, const SavedForward& saved, models::BlockRun::Kind kind) const;
  void run_backward(size_t unit, Slot& slot) const;

  const models::Transformer& model_;
  parallel::FsdpContext& fsdp_;
  parallel::FsdpContext* experts_;
  models::ActivationCheckpointing checkpointing_;
  std::vector<std::unique_ptr<parallel::ShardGroup>> groups_;
  std::vector<UnitGroups> by_unit_;  // of the model; not here: another rank's
  parallel::LocalGradients gradients_;
};

}  // namespace hyperion::trainer
