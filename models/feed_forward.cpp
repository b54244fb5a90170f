#include "models/feed_forward.h"

#include <fmt/format.h>

#include "models/block_linear.h"
#include "models/ops.h"

namespace hyperion::models {

FeedForward::FeedForward(const ModelArgs& args, int64_t layer, const ParallelDims& dims)
    : activation_(args.activation),
      gate_up_(fmt::format("layers.{}.feed_forward.w1 and w3", layer),
               {block_linear(dims, layer, "feed_forward.w1", args.hidden_dim, args.dim),
                block_linear(dims, layer, "feed_forward.w3", args.hidden_dim, args.dim,
                             residual_std(args, layer))}),
      w2_(block_linear(dims, layer, "feed_forward.w2", args.dim, args.hidden_dim, residual_std(args, layer),
                       kSplitByColumns)) {}

std::vector<ParameterPtr> FeedForward::parameters() const {
  return {gate_up_.weight(0), w2_.weight(), gate_up_.weight(1)};
}

std::vector<Linear*> FeedForward::linears() {
  std::vector<Linear>& gate_up = gate_up_.layers();
  return {&gate_up[0], &gate_up[1], &w2_};
}

at::Tensor FeedForward::forward(const ops::SumAndNorm& h, const BlockRun& run) const {
  const std::vector<at::Tensor> gate_up = gate_up_.forward(h.normed, run);
  const RowResult needed = run.recomputes() ? RowResult::kNotNeeded : RowResult::kNeededOnce;
  return ops::residual_sum(
      h.sum, row_linear(ops::gated_activation(gate_up[0], gate_up[1], activation_), w2_, needed, run), run);
}

}  // namespace hyperion::models
