#include "models/recompute.h"

#include "base/error.h"

namespace hyperion {
namespace {
thread_local RecomputeTape* active_tape = nullptr;
}

bool RecomputeTape::keep_next_matmul(at::IntArrayRef weight_shape) {
  for (const auto& shape : always_recompute_)
    if (weight_shape == at::IntArrayRef(shape)) return false;
  return ++matmuls_ % 2 == 1;
}

RecomputeTape::Results RecomputeTape::pop() {
  if (kept_.empty())
    throw_bug("activation checkpointing: the recomputed unit asked for a result that was not kept");
  Results results = std::move(kept_.front());
  kept_.pop_front();
  return results;
}

TapeScope::TapeScope(RecomputeTape* tape) : previous_(active_tape) {
  active_tape = tape;
}
TapeScope::~TapeScope() {
  active_tape = previous_;
}
RecomputeTape* TapeScope::active() {
  return active_tape;
}

}  // namespace hyperion
