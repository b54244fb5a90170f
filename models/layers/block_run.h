// What one run of a block within a step is given.
#pragma once

namespace hyperion::models {

class DeferredWeights;
class SelectiveCheckpoint;
struct LayerMetrics;
struct KeptRouting;

struct BlockRun {
  enum class Kind {
    kForward,  // its result goes to the next block
    // For the graph of its backward: its result is not read, so its last product, exchange and sum are left
    // out and its elements are undefined.
    kRecompute,
  };
  Kind kind = Kind::kForward;
  // Saves chosen results of the forward run and gives them to the second one; null: all are computed.
  SelectiveCheckpoint* selective = nullptr;
  // The same for attention alone, where `selective` is null: with context parallelism the second run of any
  // checkpointed block exchanges nothing for it.
  SelectiveCheckpoint* attention = nullptr;
  // Takes weight gradients where the backward of this run leaves them for later; null: it makes all. Outlives
  // the graph.
  DeferredWeights* deferred = nullptr;
  // Takes what layers report of the step; null in a recomputation, in validation and in steps that are not
  // logged: nothing is reported, and nothing should be computed for it.
  LayerMetrics* metrics = nullptr;
  // Takes the forward run's choice of experts and gives it to the second one; null where no second one
  // follows.
  KeptRouting* routing = nullptr;
  // Whether the tokens of each expert are counted: in forwards of training, not in validation.
  bool counts_tokens = false;

  SelectiveCheckpoint* attention_checkpoint() const { return selective != nullptr ? selective : attention; }
  bool recomputes() const { return kind == Kind::kRecompute; }
};

}  // namespace hyperion::models
