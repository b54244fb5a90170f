// The autograd node of linear layers, with or without a tensor parallel group of T ranks
// (Linear::tp_group()). There are two kinds, as in Megatron: a column layer all-gathers its input, a row
// layer reduce-scatters its output. models/layers/row_exchange.h has the collectives.
//
// Shapes:
//              without a group                with a group
//   column     [..., in] -> [..., out]        [batch, seq / T, in] -> [T, batch, seq / T, out / T]
//   row        [..., in] -> [..., out]        [T, batch, seq / T, in / T] or [batch, seq, in / T]
//                                             -> [batch, seq / T, out]
// A gathered tensor [T, batch, seq / T, n] has the rows of rank 0 first. T need not divide `out` or `in`: a
// rank's width is that of its shard of the weight.
//
// All ranks of the group must run the same nodes in the same order, in backward too. A weight's gradient is
// that of this rank's shard; a frozen weight has none. Each sum over ranks is rounded once, to the compute
// dtype. The nodes use `selective` and `deferred` of the BlockRun.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "models/layers/block_run.h"
#include "models/layers/linear.h"

namespace hyperion::models {

// Multiplies x by the transposed weight of each layer, adds its bias and returns one output per layer. The
// layers share one all-gather and, in FP8, one cast. Packed weights (Parameter::pack) are multiplied as one:
// forward is one product, whose views are the outputs, and backward is two products, without a copy if the
// gradients are views of one tensor of the same layout.
//
// x: one tensor, or the same tensor once for each layer (ops::SumAndNorm::normed). If it is given several
// times, the first gets the sum of the input gradients and the others none. On a GPU each may get its own
// layer's gradient instead, and the norm's backward kernel adds them.
//
// Forward keeps the gathered rows for wgrad. If SAC saved every output, the recomputation skips the
// all-gather, and backward does it, overlapped with dgrad (with wgrad, if that is deferred).
std::vector<at::Tensor> column_linear(at::TensorList x, const std::vector<const Linear*>& layers,
                                      const BlockRun& run = {});

// Who reads the output of a row layer.
enum class OutputUse {
  kRecomputed,   // forward and recomputation: SAC may save it
  kForwardOnly,  // this run only
  kUnused,       // not read: the product and the reduce-scatter are skipped, and the elements are undefined
};
// Multiplies x by the layer's transposed weight, reduce-scatters the product over the group and adds the bias
// to this rank's rows. The gradient of the bias is the sum over these rows, of which the ranks of the group
// have different ones. With a group, SAC always saves the output, even of a product that it recomputes
// otherwise: it is 1/T of the product, and is not communicated twice.
at::Tensor row_linear(const at::Tensor& x, const Linear& layer, OutputUse use = OutputUse::kRecomputed,
                      const BlockRun& run = {});

}  // namespace hyperion::models
