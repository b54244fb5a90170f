// One pass over the model's units, forward and backward, as plain steps: gather a unit's weights, prefetch
// the next unit's, run it, let the weights go; then the same from the last unit to the first with gradients.
// Activation checkpointing is part of the walk: a checkpointed block keeps its input only and is run again in
// backward.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "models/recompute.h"
#include "models/transformer.h"
#include "parallel/fsdp.h"

namespace hyperion {

enum class ReshardPolicy { kDefault, kAlways, kNever };

enum class BlockCheckpoint {
  kNone,        // autograd keeps what the block's operations saved
  kFull,        // only the input is kept; the block is run again in backward
  kOperations,  // as kFull, with attention and every second matrix product kept (models/recompute.h)
};

struct WalkOptions {
  ReshardPolicy reshard = ReshardPolicy::kDefault;
  std::vector<BlockCheckpoint> checkpoint{};  // one a block
  RecomputeTape::Shapes
      always_recompute{};  // under kOperations: shapes of weights whose products are never kept
  // Gather the unit that comes next while one runs. Backward order then equals FSDP2's; in forward FSDP2
  // leaves the overlap to the GPU's queue, which a CPU does not have.
  bool prefetch_forward = true, prefetch_backward = true;
};

// One microbatch on the compute device.
struct Microbatch {
  at::Tensor tokens;  // int64 [batch, seq]
  at::Tensor labels;  // int64 [batch, seq], -100 = ignored
  SequenceContext context;
};

class UnitWalk {
 public:
  // Shards the model's parameters over the context's groups: memory for this rank's rows only is allocated.
  UnitWalk(const Transformer& model, FsdpContext& fsdp, WalkOptions options);

  const std::vector<std::unique_ptr<ShardGroup>>& groups() const { return groups_; }
  std::vector<ShardedParameterPtr> parameters() const;  // every parameter once, in unit order

  // After anything has written the masters: what layers and gathers keep of the old ones is void. Collective
  // when weights are gathered encoded.
  void weights_changed();

  // Adds the gradient of scale * (summed cross-entropy) to the sharded gradients; returns the unscaled sum
  // (0-dim). Gradients are complete after the call with last = true.
  at::Tensor forward_backward(const Microbatch& batch, const at::Tensor& scale, bool last);
  // The summed cross-entropy without gradients.
  at::Tensor loss_sum(const Microbatch& batch);

  // Before the first microbatch of a step: gradients become zero, and messages name the step from now on.
  void begin_step(int64_t step);

 private:
  struct Kept;  // what forward leaves for backward, one a unit
  at::Tensor run_block(size_t block, const at::Tensor& input, const Microbatch& batch, Kept& kept);
  at::Tensor backward_block(size_t block, const at::Tensor& grad, const Microbatch& batch, Kept& kept);
  void phase(const char* what, size_t unit) const;
  void begin(size_t unit, const char* what);
  bool reshards_after_forward() const { return options_.reshard != ReshardPolicy::kNever; }

  const Transformer& model_;
  FsdpContext& fsdp_;
  WalkOptions options_;
  std::vector<std::unique_ptr<ShardGroup>> groups_;  // embedding, blocks, head
  int64_t step_ = 0;
};

}  // namespace hyperion
