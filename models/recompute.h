// Selective recomputation: remembers the results of chosen operations of one unit call, so that running the
// unit again in backward reads them instead of computing them. Linear layers and attention consult the
// tape that is active.
//
// The rule is v0.2.2's selective checkpointing by operation: attention is kept, and every second matrix
// product, starting with the first (in a Llama block: wq, wv, w1 and w2 are kept; wk, wo and w3 are
// recomputed). Products with weights of chosen shapes are always recomputed and do not count.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <vector>

namespace hyperion {

class RecomputeTape {
 public:
  using Results = std::vector<at::Tensor>;
  using Shapes = std::vector<std::vector<int64_t>>;

  // `always_recompute`: shapes [out, in] of weights; it must outlive the tape.
  explicit RecomputeTape(const Shapes& always_recompute) : always_recompute_(always_recompute) {}

  // Whether the next matrix product, with a weight of this shape, is one of the kept ones. Call once for
  // each, in order.
  bool keep_next_matmul(at::IntArrayRef weight_shape);

  bool replaying() const { return replaying_; }
  void push(Results results) { kept_.push_back(std::move(results)); }
  Results pop();  // Error(kBug) when the second run asks for more than the first one kept

  void start_replay() {
    replaying_ = true;
    matmuls_ = 0;
  }

 private:
  const Shapes& always_recompute_;
  std::deque<Results> kept_;
  int64_t matmuls_ = 0;
  bool replaying_ = false;
};

// Makes `tape` the active one of this thread while in scope (nullptr: none).
class TapeScope {
 public:
  explicit TapeScope(RecomputeTape* tape);
  ~TapeScope();
  TapeScope(const TapeScope&) = delete;
  TapeScope& operator=(const TapeScope&) = delete;

  static RecomputeTape* active();

 private:
  RecomputeTape* previous_;
};

// compute(), or what the tape kept of it when this unit is being run again. keep: whether this result is one
// of those.
template <typename Compute>
RecomputeTape::Results kept_or_computed(bool keep, Compute compute) {
  RecomputeTape* tape = TapeScope::active();
  if (tape == nullptr || !keep) return compute();
  if (tape->replaying()) return tape->pop();
  RecomputeTape::Results results = compute();
  tape->push(results);
  return results;
}

}  // namespace hyperion
