// Weight gradients that a backward leaves for later: a pipeline may divide it, so that the gradient of a
// block's input, which the stage before waits for, is there first.
#pragma once

#include <functional>
#include <utility>
#include <vector>

namespace hyperion::models {

// Of one run of a block (models/layers/block_run.h).
class DeferredWeights {
 public:
  // Before a backward: whether nodes add what they leave for later, instead of making it.
  void set_deferring(bool deferring) { deferring_ = deferring; }
  bool deferring() const { return deferring_; }

  // make: adds a gradient to a weight's .grad(). It owns what it reads, without a graph, and reads no weight:
  // weights may have been freed. Under tensor parallelism it may be collective, as the node is.
  void add(std::function<void()> make) { entries_.push_back(std::move(make)); }
  // In the order in which they were added; frees what each has read.
  void make_all() {
    for (std::function<void()>& make : std::exchange(entries_, {})) std::exchange(make, nullptr)();
  }
  bool empty() const { return entries_.empty(); }

 private:
  bool deferring_ = false;
  std::vector<std::function<void()>> entries_;
};

}  // namespace hyperion::models
