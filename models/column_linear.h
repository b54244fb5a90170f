// The node of linear layers that read one input; with a tensor parallel group it gathers the input
// (models/tensor_region.h).
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "models/linear.h"

namespace hyperion::models {

// x times the transposed weight of each layer: one result per layer. One gather serves all of them, and in
// FP8 one cast. Where their weights lie side by side (Parameter::pack) they are one product, of which the
// results are views; and backward is two, without a copy where the gradients are views of one tensor of that
// layout. The run that backward follows keeps what it needs of the gathered rows; only where a
// SelectiveCheckpoint had the results of all layers, so that this run gathered nothing, does backward gather
// the shard, while it computes the input gradient (of a model's nodes by operation that is none).
//
// x: one tensor, or the same once for each layer (ops::SumAndNorm::normed), which then gets the gradient of
// that layer alone.
std::vector<at::Tensor> column_linear(at::TensorList x, const std::vector<const Linear*>& layers);

}  // namespace hyperion::models
