// BlockRun has the arguments of one run of a block within a step: a forward or its recomputation.
#pragma once

namespace hyperion::models {

class DeferredWeights;
class SelectiveCheckpoint;
struct LayerMetrics;
struct KeptRouting;

struct BlockRun {
  enum class Kind {
    kForward,  // the next block reads the output
    // Activation checkpointing runs the block again for its autograd graph. Nothing reads the output: the
    // last product, its reduce-scatter and the residual sum are skipped, and the elements are undefined.
    kRecompute,
  };
  Kind kind = Kind::kForward;
  // SAC: saves outputs of the forward for the recomputation; null: nothing is saved.
  SelectiveCheckpoint* selective = nullptr;
  // SAC of attention alone, for modes whose `selective` is null: with context parallelism a recomputation
  // never exchanges keys and values again.
  SelectiveCheckpoint* attention = nullptr;
  // Collects the weight gradients that a split backward defers; null: backward computes them. Outlives the
  // autograd graph.
  DeferredWeights* deferred = nullptr;
  // Collects metrics of layers. Null in a recomputation, in validation and in steps that are not logged:
  // layers then compute nothing for metrics.
  LayerMetrics* metrics = nullptr;
  // Keeps the routing of the forward for the recomputation; null if there is none.
  KeptRouting* routing = nullptr;
  // True if MoE layers count the tokens of each expert: true in training forwards, false in validation.
  bool counts_tokens = false;

  SelectiveCheckpoint* attention_checkpoint() const { return selective != nullptr ? selective : attention; }
  bool recomputes() const { return kind == Kind::kRecompute; }
};

}  // namespace hyperion::models
