// The node of one linear layer and the residual that its result is added to; with a tensor parallel group it
// sums the result over the ranks and scatters it (models/tensor_region.h).
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "models/linear.h"

namespace hyperion::models {

// Whether anybody reads the values of a row node's result.
enum class RowResult {
  kNeededAgain,  // also when the block is run again: an active SelectiveCheckpoint may save it
  kNeededOnce,   // only in this run
  kNotNeeded,    // nobody: neither product nor exchange is run, and the result's elements are undefined
};
// residual + x times the layer's transposed weight, summed over the ranks, or that sum alone; residual [...,
// out] as the result. Under a SelectiveCheckpoint with a group the result is saved whatever the product's
// turn says: it is 1/T of the product, and the exchange is not repeated.
at::Tensor row_linear(const at::Tensor& x, const Linear& layer, const std::optional<at::Tensor>& residual,
                      RowResult result = RowResult::kNeededAgain);

}  // namespace hyperion::models
