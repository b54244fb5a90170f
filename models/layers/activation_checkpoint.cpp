#include "models/layers/activation_checkpoint.h"

#include "base/error.h"

namespace hyperion::models {

bool SelectiveCheckpoint::saves_next_matmul(at::IntArrayRef weight_shape) {
  if (saved_products_ == Products::kAll) return true;
  for (const auto& shape : always_recompute_)
    if (weight_shape == at::IntArrayRef(shape)) return false;
  return ++matmuls_ % 2 == 1;
}

SelectiveCheckpoint::Results SelectiveCheckpoint::take_saved() {
  if (saved_.empty())
    throw_bug("activation checkpointing: the recomputed unit asked for a result that was not kept");
  Results results = std::move(saved_.front());
  saved_.pop_front();
  return results;
}

std::unique_ptr<SelectiveCheckpoint> selective_checkpoint(
    ActivationCheckpoint mode, const SelectiveCheckpoint::Shapes& always_recompute) {
  using Products = SelectiveCheckpoint::Products;
  if (mode != ActivationCheckpoint::kSelectiveOp && mode != ActivationCheckpoint::kElementwise)
    return nullptr;
  return std::make_unique<SelectiveCheckpoint>(
      always_recompute, mode == ActivationCheckpoint::kElementwise ? Products::kAll : Products::kEverySecond);
}

}  // namespace hyperion::models
