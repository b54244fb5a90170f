#include "models/parts/dense/feed_forward.h"

#include <fmt/format.h>

#include "models/layers/block_linear.h"
#include "models/layers/ops.h"

namespace hyperion::models {

FeedForward::FeedForward(const ModelArgs& args, int64_t layer, const char* name, int64_t hidden_dim,
                         const ParallelDims& dims)
    : activation_(args.activation),
      gate_up_(fmt::format("layers.{}.{}.w1 and w3", layer, name),
               {block_linear(dims, layer, fmt::format("{}.w1", name), hidden_dim, args.dim),
                block_linear(dims, layer, fmt::format("{}.w3", name), hidden_dim, args.dim,
                             residual_std(args, layer))}),
      w2_(block_linear(dims, layer, fmt::format("{}.w2", name), args.dim, hidden_dim,
                       residual_std(args, layer), kSplitByColumns)) {}

std::vector<ParameterPtr> FeedForward::parameters() const {
  return {gate_up_.weight(0), w2_.weight(), gate_up_.weight(1)};
}

std::vector<Linear*> FeedForward::linears() {
  std::vector<Linear>& gate_up = gate_up_.layers();
  return {&gate_up[0], &gate_up[1], &w2_};
}

at::Tensor FeedForward::forward(const ops::SumAndNorm& h, const BlockRun& run) const {
  return ops::residual_sum(h.sum, of_norm(h.normed, run), run);
}

at::Tensor FeedForward::of_norm(at::TensorList x, const BlockRun& run) const {
  const std::vector<at::Tensor> gate_up = gate_up_.forward(x, run);
  const RowResult needed = run.recomputes() ? RowResult::kNotNeeded : RowResult::kNeededOnce;
  return row_linear(ops::gated_activation(gate_up[0], gate_up[1], activation_), w2_, needed, run);
}

}  // namespace hyperion::models
