#include "models/parts/dense/description.h"

namespace hyperion::models {

std::vector<ParameterShape> gated_matrices(const ModelArgs& args, const std::string& name, int64_t hidden,
                                           const std::string& theirs) {
  const auto matrix = [&](const char* ours, const char* hugging_face, std::vector<int64_t> dims, Draw draw,
                          int split) {
    return ParameterShape{
        .name = name + "." + ours + ".weight",
        .dims = std::move(dims),
        .draw = draw,
        .split = split,
        .hugging_face = {.name = "model.layers.*." + theirs + "." + hugging_face + ".weight"}};
  };
  return {matrix("w1", "gate_proj", {hidden, args.dim}, Draw::kInput, kSplitByRows),
          matrix("w2", "down_proj", {args.dim, hidden}, Draw::kResidual, kSplitByColumns),
          matrix("w3", "up_proj", {hidden, args.dim}, Draw::kResidual, kSplitByRows)};
}

PartDescription describe_feed_forward(const ModelArgs& args) {
  return {.parameters = gated_matrices(args, "feed_forward", args.dense.hidden_dim,
                                       args.family == "llama4" ? "feed_forward" : "mlp"),
          .extents = {{.what = "the hidden width's columns", .extent = args.dense.hidden_dim}}};
}

}  // namespace hyperion::models
