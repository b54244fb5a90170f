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
// `beside`: what the node that made x gives beside it. gradient_amaxes (null: not asked for): fp32 [layers],
// defined where reads_amaxes(); the one node that makes the gradients of all results may return, as the
// gradient of this tensor, the largest magnitudes of those gradients. So no pass looks for them.
struct BesideInput {
  std::vector<at::Tensor> again{};  // x for the second layer and further ones: they get their own gradients
  at::Tensor amax{};                // fp32, one number: the largest magnitude of x
};
std::vector<at::Tensor> column_linear(const at::Tensor& x, const std::vector<const Linear*>& layers,
                                      const BesideInput& beside = {}, at::Tensor* gradient_amaxes = nullptr);

}  // namespace hyperion::models
