// The model with its parameters sharded (FSDP), and one microbatch through it, forward and backward, as plain
// steps over its units: all-gather a unit's weights, prefetch the next unit's, run the unit, reshard; then
// the same from the last unit to the first, with gradients. Activation checkpointing is part of these steps:
// of a checkpointed block only the input is kept, and the block is run again in backward.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "models/layers/activation_checkpoint.h"
#include "models/transformer.h"
#include "parallel/fsdp.h"

namespace hyperion::trainer {

struct FsdpModelOptions {
  // false: a block's weights stay gathered from its forward to its backward.
  bool reshard_after_forward = true;
  models::ActivationCheckpointing checkpointing{};
};

class FsdpModel {
 public:
  // Shards the model's parameters over the context's groups: memory for this rank's rows only is allocated.
  FsdpModel(const models::Transformer& model, parallel::FsdpContext& fsdp, FsdpModelOptions options);

  const std::vector<std::unique_ptr<parallel::ShardGroup>>& groups() const { return groups_; }
  std::vector<parallel::ShardedParameterPtr> parameters() const;  // every parameter once, in unit order
  const parallel::LocalGradients& gradients() const { return gradients_; }  // of all of them, by unit

  // Call after anything has written the masters: what layers and all-gathers keep of the old ones becomes
  // invalid. Collective when weights are gathered encoded.
  void weights_changed();

  // Adds the gradient of scale * (summed cross-entropy) to the step's sharded gradients; returns the unscaled
  // sum (0-dim). Gradients are complete after the call with last = true.
  at::Tensor forward_backward(const models::Microbatch& batch, const at::Tensor& scale, bool last);
  // The summed cross-entropy without gradients.
  at::Tensor loss_sum(const models::Microbatch& batch);

  // Before the first microbatch of a step: the next gradients are the first ones, and messages name the step
  // from now on.
  void begin_step(int64_t step);
  // The step's gradients have been used: on a GPU their memory is free until the next ones are reduced.
  // Nothing may read gradients() until the last microbatch of the next step.
  void drop_gradients();

 private:
  struct SavedForward;  // what the forward of one unit leaves for its backward
  at::Tensor forward_block(size_t block, const at::Tensor& input, const models::Microbatch& batch,
                           SavedForward& saved);
  // From the gradient of the block's result that of its input.
  at::Tensor backward_block(size_t block, const at::Tensor& grad, const models::Microbatch& batch,
                            SavedForward& saved);
  void set_unit_phase(const char* what, size_t unit) const;
  void unshard_and_prefetch(size_t unit, std::optional<size_t> next);

  const models::Transformer& model_;
  parallel::FsdpContext& fsdp_;
  FsdpModelOptions options_;
  std::vector<std::unique_ptr<parallel::ShardGroup>> groups_;  // one per unit: embedding, blocks, head
  parallel::LocalGradients gradients_;
  int64_t step_ = 0;
};

}  // namespace hyperion::trainer
