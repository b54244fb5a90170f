// Deferred weight gradients: a pipeline schedule may split backward into dgrad and wgrad, because the
// previous stage waits for dgrad only.
#pragma once

#include <functional>
#include <utility>
#include <vector>

namespace hyperion::models {

// The wgrads of one run of a block (models/layers/block_run.h).
class DeferredWeights {
 public:
  // Sets, before a backward, whether nodes defer their wgrad instead of computing it.
  void set_deferring(bool deferring) { deferring_ = deferring; }
  bool deferring() const { return deferring_; }

  // Adds a closure that adds a gradient to a weight's .grad(). The closure owns the tensors that it reads,
  // detached from the graph, and must not read a weight, which may have been freed. Under tensor parallelism
  // it may be collective, like its node.
  void add(std::function<void()> make) { entries_.push_back(std::move(make)); }
  // Runs the closures in the order of add() and frees the tensors of each after it.
  void make_all() {
    for (std::function<void()>& make : std::exchange(entries_, {})) std::exchange(make, nullptr)();
  }
  bool empty() const { return entries_.empty(); }

 private:
  bool deferring_ = false;
  std::vector<std::function<void()>> entries_;
};

}  // namespace hyperion::models
