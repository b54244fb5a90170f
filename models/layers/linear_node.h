// The differentiable node of linear layers, whole on one rank or divided over the ranks of a tensor parallel
// group (Linear::ranks, T of them), in its two forms: column layers read one input, which is gathered; a row
// layer's result is added up over the ranks and scattered. models/layers/row_exchange.h exchanges the rows.
//
// Without a group x is [..., in] and a result [..., out]. With one, a column layer takes this rank's part of
// every sequence, [batch, seq / T, in], and gives rows that lie rank by rank, [T, batch, seq / T, part of
// out]; a row layer takes such rows, or whole sequences [batch, seq, part of in], and gives [batch, seq / T,
// out]. Every rank of the group must run the same nodes in the same order, backward too.
//
// Gradients of weights are those of this rank's part; frozen weights have none. Each sum over ranks is
// rounded once, to the compute dtype. Of the block's run the nodes use `selective` and `deferred`.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "models/layers/block_run.h"
#include "models/layers/linear.h"

namespace hyperion::models {

// x times the transposed weight of each layer: one result per layer. One gather serves all of them, and in
// FP8 one cast. Where their weights lie side by side (Parameter::pack) they are one product, of which the
// results are views; and backward is two, without a copy where the gradients are views of one tensor of that
// layout. The run that backward follows keeps the gathered rows that it needs. Only where `selective` has
// saved the results of all layers, so that this run gathered nothing, does backward gather them, while it
// computes the input gradient (with weight gradients, where these are deferred); checkpointing by operation
// saves those of no such node.
//
// x: one tensor, or the same once for each layer (ops::SumAndNorm::normed). Of several the first gets the
// gradient and the others none; but on a GPU, where the norm's kernel adds them up, each gets its layer's.
std::vector<at::Tensor> column_linear(at::TensorList x, const std::vector<const Linear*>& layers,
                                      const BlockRun& run = {});

// When the values of a row layer's result are read.
enum class RowResult {
  kNeededAgain,  // in the recomputation, too: `selective` may save it
  kNeededOnce,   // only in this run
  kNotNeeded,    // never: neither product nor exchange is run, and the result's elements are undefined
};
// x times the layer's transposed weight, added up over the ranks. With several ranks `selective` always saves
// the sum, also of a product that it would recompute: it is 1/T of the product, and the exchange is not
// repeated.
at::Tensor row_linear(const at::Tensor& x, const Linear& layer, RowResult result = RowResult::kNeededAgain,
                      const BlockRun& run = {});

}  // namespace hyperion::models
