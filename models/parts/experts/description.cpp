#include "models/parts/experts/description.h"

#include <iterator>

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

// gpt_oss's stacks and their biases. Each expert tensor parallel rank adds its columns of mlp2's bias.
std::vector<ParameterShape> clamped_stacks(const ModelArgs& args) {
  const int64_t experts = args.experts.num_experts, hidden = args.experts.hidden_dim, dim = args.dim;
  const auto stack = [&](const char* name, std::vector<int64_t> dims, int split, HuggingFaceTensor theirs) {
    theirs.name.insert(0, "model.layers.*.mlp.experts.");
    return ParameterShape{.name = std::string("moe.experts.") + name,
                          .dims = std::move(dims),
                          .draw = Draw::kResidual,
                          .split = split,
                          .domain = Domain::kExpert,
                          .hugging_face = std::move(theirs)};
  };
  return {stack("mlp1_weight", {experts, 2 * hidden, dim}, 1,
                {.name = "gate_up_proj", .fused_width = 2 * hidden}),
          stack("mlp2_weight", {experts, dim, hidden}, 2, {.name = "down_proj", .fused_width = dim}),
          stack("mlp1_bias", {experts, 2 * hidden}, 1, {.name = "gate_up_proj_bias"}),
          stack("mlp2_bias", {experts, dim}, 1, {.name = "down_proj_bias"})};
}

std::vector<ParameterShape> stacks_of_experts(const ModelArgs& args) {
  if (args.experts.clamped) return clamped_stacks(args);
  const int64_t experts = args.experts.num_experts, hidden = args.experts.hidden_dim, dim = args.dim;
  return {expert_stack(args, "w1", {experts, hidden, dim}, 1, Draw::kInput),
          expert_stack(args, "w2", {experts, dim, hidden}, 2, Draw::kResidual),
          expert_stack(args, "w3", {experts, hidden, dim}, 1, Draw::kResidual)};
}

}  // namespace

PartDescription describe_experts(const ModelArgs& args) {
  const int64_t experts = args.experts.num_experts, hidden = args.experts.hidden_dim, dim = args.dim;
  const bool llama4 = args.family == "llama4";
  const char* router = llama4                     ? "model.layers.*.feed_forward.router.weight"
                       : args.family == "gpt_oss" ? "model.layers.*.mlp.router.weight"
                                                  : "model.layers.*.mlp.gate.weight";
  PartDescription part{
      .parameters = {{.name = "moe.router.gate.weight",
                      .dims = {experts, dim},
                      .draw = Draw::kResidual,
                      .hugging_face = {.name = router}}},
      .buffers = {{.name = "moe.expert_bias",
                   .dims = {experts},
                   .draw = Draw::kZeros,
                   .hugging_face = {.name = args.family == "deepseek_v3"
                                                ? "model.layers.*.mlp.gate.e_score_correction_bias"
                                                : ""}}},
      .experts = ExpertWidths{.experts = experts, .top_k = args.experts.top_k, .dim = dim, .hidden = hidden}};
  std::vector<ParameterShape> stacks = stacks_of_experts(args);
  part.parameters.insert(part.parameters.begin(), std::make_move_iterator(stacks.begin()),
                         std::make_move_iterator(stacks.end()));
  // Pairs of gate and up stay together.
  if (args.experts.clamped)
    part.extents = {{.what = "columns of an expert", .extent = hidden, .evenly = true}};
  if (const int64_t shared = args.experts.num_shared_experts * hidden; shared > 0) {
    for (ParameterShape& matrix :
         gated_matrices(args, "moe.shared_experts", shared,
                        llama4 ? "feed_forward.shared_expert" : "mlp.shared_experts"))
      part.parameters.push_back(std::move(matrix));
    part.extents.push_back({.what = "the shared experts' columns", .extent = shared});
  }
  if (args.experts.router_bias) add_biases(part, {"moe.router.gate.weight"}, Draw::kResidual);
  return part;
}

}  // namespace hyperion::models
