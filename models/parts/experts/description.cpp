#include "models/parts/experts/description.h"

#include "models/parts/dense/description.h"

namespace hyperion::models {
namespace {

// Hugging Face's qwen3_moe and deepseek_v3 store each expert's matrix as its own tensor; llama4 stores stacks
// of transposed matrices, with w1 and w3 side by side.
HuggingFaceTensor stack_in_hugging_face(const ModelArgs& args, std::string_view stack) {
  if (args.family != "llama4") {
    const char* name = stack == "w1" ? "gate_proj" : stack == "w2" ? "down_proj" : "up_proj";
    return {.name = std::string("model.layers.*.mlp.experts.#.") + name + ".weight"};
  }
  if (stack == "w2")
    return {.name = "model.layers.*.feed_forward.experts.down_proj", .fused_width = args.dim};
  return {.name = "model.layers.*.feed_forward.experts.gate_up_proj",
          .fused_width = 2 * args.experts.hidden_dim,
          .fused_first = stack == "w3" ? args.experts.hidden_dim : 0};
}

// split: the dimension of the hidden width.
ParameterShape expert_stack(const ModelArgs& args, const char* name, std::vector<int64_t> dims, int split,
                            Draw draw) {
  return {.name = std::string("moe.experts.") + name,
          .dims = std::move(dims),
          .draw = draw,
          .split = split,
          .domain = Domain::kExpert,
          .hugging_face = stack_in_hugging_face(args, name)};
}

}  // namespace

PartDescription describe_experts(const ModelArgs& args) {
  const int64_t experts = args.experts.num_experts, hidden = args.experts.hidden_dim, dim = args.dim;
  const bool llama4 = args.family == "llama4";
  PartDescription part{
      .parameters = {expert_stack(args, "w1", {experts, hidden, dim}, 1, Draw::kInput),
                     expert_stack(args, "w2", {experts, dim, hidden}, 2, Draw::kResidual),
                     expert_stack(args, "w3", {experts, hidden, dim}, 1, Draw::kResidual),
                     {.name = "moe.router.gate.weight",
                      .dims = {experts, dim},
                      .draw = Draw::kResidual,
                      .hugging_face = {.name = llama4 ? "model.layers.*.feed_forward.router.weight"
                                                      : "model.layers.*.mlp.gate.weight"}}},
      .buffers = {{.name = "moe.expert_bias",
                   .dims = {experts},
                   .draw = Draw::kZeros,
                   .hugging_face = {.name = args.family == "deepseek_v3"
                                                ? "model.layers.*.mlp.gate.e_score_correction_bias"
                                                : ""}}},
      .experts = ExpertWidths{.experts = experts, .top_k = args.experts.top_k, .dim = dim, .hidden = hidden}};
  if (const int64_t shared = args.experts.num_shared_experts * hidden; shared > 0) {
    for (ParameterShape& matrix :
         gated_matrices(args, "moe.shared_experts", shared,
                        llama4 ? "feed_forward.shared_expert" : "mlp.shared_experts"))
      part.parameters.push_back(std::move(matrix));
    part.extents = {{.what = "the shared experts' columns", .extent = shared}};
  }
  return part;
}

}  // namespace hyperion::models
