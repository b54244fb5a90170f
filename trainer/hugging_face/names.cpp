#include "trainer/hugging_face/names.h"

#include <charconv>
#include <optional>
#include <span>

#include <fmt/format.h>

#include "base/error.h"

namespace hyperion::hugging_face {
namespace {

// The same parameter here and there; * stands for the number of a block, # for that of an expert.
struct Names {
  std::string_view ours, theirs;
};
constexpr Names kAllModels[] = {
    {"tok_embeddings.weight", "model.embed_tokens.weight"},
    {"norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
    {"layers.*.attention.wo.weight", "model.layers.*.self_attn.o_proj.weight"},
    {"layers.*.attention_norm.weight", "model.layers.*.input_layernorm.weight"},
    {"layers.*.ffn_norm.weight", "model.layers.*.post_attention_layernorm.weight"},
};
constexpr Names kPlainAttention[] = {
    {"layers.*.attention.wq.weight", "model.layers.*.self_attn.q_proj.weight"},
    {"layers.*.attention.wk.weight", "model.layers.*.self_attn.k_proj.weight"},
    {"layers.*.attention.wv.weight", "model.layers.*.self_attn.v_proj.weight"},
};
constexpr Names kHeadNorms[] = {
    {"layers.*.attention.q_norm.weight", "model.layers.*.self_attn.q_norm.weight"},
    {"layers.*.attention.k_norm.weight", "model.layers.*.self_attn.k_norm.weight"},
};
constexpr Names kLatentAttention[] = {
    {"layers.*.attention.wq.weight", "model.layers.*.self_attn.q_proj.weight"},
    {"layers.*.attention.wq_a.weight", "model.layers.*.self_attn.q_a_proj.weight"},
    {"layers.*.attention.q_norm.weight", "model.layers.*.self_attn.q_a_layernorm.weight"},
    {"layers.*.attention.wq_b.weight", "model.layers.*.self_attn.q_b_proj.weight"},
    {"layers.*.attention.wkv_a.weight", "model.layers.*.self_attn.kv_a_proj_with_mqa.weight"},
    {"layers.*.attention.kv_norm.weight", "model.layers.*.self_attn.kv_a_layernorm.weight"},
    {"layers.*.attention.wkv_b.weight", "model.layers.*.self_attn.kv_b_proj.weight"},
};
constexpr Names kFeedForward[] = {
    {"layers.*.feed_forward.w1.weight", "model.layers.*.mlp.gate_proj.weight"},
    {"layers.*.feed_forward.w2.weight", "model.layers.*.mlp.down_proj.weight"},
    {"layers.*.feed_forward.w3.weight", "model.layers.*.mlp.up_proj.weight"},
};
constexpr Names kExperts[] = {
    {"layers.*.moe.router.gate.weight", "model.layers.*.mlp.gate.weight"},
    {"layers.*.moe.expert_bias", "model.layers.*.mlp.gate.e_score_correction_bias"},
    {"layers.*.moe.experts.w1", "model.layers.*.mlp.experts.#.gate_proj.weight"},
    {"layers.*.moe.experts.w2", "model.layers.*.mlp.experts.#.down_proj.weight"},
    {"layers.*.moe.experts.w3", "model.layers.*.mlp.experts.#.up_proj.weight"},
    {"layers.*.moe.shared_experts.w1.weight", "model.layers.*.mlp.shared_experts.gate_proj.weight"},
    {"layers.*.moe.shared_experts.w2.weight", "model.layers.*.mlp.shared_experts.down_proj.weight"},
    {"layers.*.moe.shared_experts.w3.weight", "model.layers.*.mlp.shared_experts.up_proj.weight"},
};
constexpr Names kLlama4[] = {
    {"layers.*.feed_forward.w1.weight", "model.layers.*.feed_forward.gate_proj.weight"},
    {"layers.*.feed_forward.w2.weight", "model.layers.*.feed_forward.down_proj.weight"},
    {"layers.*.feed_forward.w3.weight", "model.layers.*.feed_forward.up_proj.weight"},
    {"layers.*.moe.router.gate.weight", "model.layers.*.feed_forward.router.weight"},
    {"layers.*.moe.experts.w1", "model.layers.*.feed_forward.experts.gate_up_proj"},
    {"layers.*.moe.experts.w2", "model.layers.*.feed_forward.experts.down_proj"},
    {"layers.*.moe.experts.w3", "model.layers.*.feed_forward.experts.gate_up_proj"},
    {"layers.*.moe.shared_experts.w1.weight", "model.layers.*.feed_forward.shared_expert.gate_proj.weight"},
    {"layers.*.moe.shared_experts.w2.weight", "model.layers.*.feed_forward.shared_expert.down_proj.weight"},
    {"layers.*.moe.shared_experts.w3.weight", "model.layers.*.feed_forward.shared_expert.up_proj.weight"},
};

std::vector<std::span<const Names>> names_of(const models::ModelArgs& args) {
  std::vector<std::span<const Names>> all = {kAllModels};
  if (args.kv_lora_rank > 0)
    all.emplace_back(kLatentAttention);
  else
    all.emplace_back(kPlainAttention);
  if (args.qk_norm) all.emplace_back(kHeadNorms);
  if (args.family == "llama4") {
    all.emplace_back(kLlama4);
  } else {
    all.emplace_back(kFeedForward);
    if (args.num_experts > 0) all.emplace_back(kExperts);
  }
  return all;
}

bool is_block(const models::ModelArgs& args, std::string_view number) {
  int64_t block = -1;
  std::from_chars(number.begin(), number.end(), block);
  return block >= 0 && block < args.n_layers && number == std::to_string(block);
}

// The name in Hugging Face's notation, of one block, or nothing.
std::optional<std::string> translate(const models::ModelArgs& args, std::string_view name) {
  if (args.tied && name == "output.weight") return std::nullopt;
  for (const std::span<const Names> table : names_of(args))
    for (const auto& [ours, theirs] : table) {
      const size_t star = ours.find('*');
      if (star == ours.npos && name == ours) return std::string(theirs);
      if (star == ours.npos || name.size() < ours.size()) continue;
      const std::string_view end = ours.substr(star + 1);
      const std::string_view block = name.substr(star, name.size() - star - end.size());
      if (!name.starts_with(ours.substr(0, star)) || !name.ends_with(end) || !is_block(args, block)) continue;
      std::string result(theirs);
      return result.replace(result.find('*'), 1, block);
    }
  return std::nullopt;
}

bool is_expert_bias(std::string_view fqn) {
  return fqn.starts_with("layers.") && fqn.ends_with(".moe.expert_bias");
}

// Of a stack of llama4.
checkpoint::StoredPart fused_part(const models::ModelArgs& args, std::string_view fqn) {
  if (fqn.ends_with("w2")) return {.width = args.dim};
  return {.width = 2 * args.moe_hidden_dim, .first = fqn.ends_with("w3") ? args.moe_hidden_dim : 0};
}

}  // namespace

std::vector<HfTensor> hf_tensors(const models::ModelArgs& args, std::string_view fqn) {
  if (is_expert_bias(fqn) && args.num_experts > 0 && args.family != "deepseek_v3") return {};
  const auto name = translate(args, fqn);
  if (!name) throw_bug("parameter \"{}\" has no name in Hugging Face's {}", fqn, args.family);
  if (fqn.find(".moe.experts.") != fqn.npos && args.family == "llama4")
    return {{.name = *name, .part = fused_part(args, fqn)}};
  const size_t number = name->find('#');
  if (number != name->npos) {
    std::vector<HfTensor> matrices;
    for (int64_t expert = 0; expert < args.num_experts; ++expert)
      matrices.push_back({.name = std::string(*name).replace(number, 1, std::to_string(expert)),
                          .part = {.matrix = expert}});
    return matrices;
  }
  const bool rotated = fqn.ends_with("attention.wq.weight") || fqn.ends_with("attention.wk.weight");
  const bool reordered = args.family == "llama3" && args.rope_style == models::RopeStyle::kInterleaved;
  return {{.name = *name, .head_dim = rotated && reordered ? args.head_dim : 0}};
}

bool hf_may_ignore(const models::ModelArgs& args, std::string_view name) {
  const bool next_token =
      args.family == "deepseek_v3" && name.starts_with(fmt::format("model.layers.{}.", args.n_layers));
  return next_token || name.ends_with(".rotary_emb.inv_freq");
}

bool hf_keeps_float32(std::string_view fqn) {
  return is_expert_bias(fqn);
}

int64_t hf_row(const HfTensor& tensor, int64_t our_row) {
  if (tensor.head_dim == 0) return our_row;
  const int64_t in_head = our_row % tensor.head_dim;
  return our_row - in_head + in_head % 2 * (tensor.head_dim / 2) + in_head / 2;
}

int64_t our_row(const HfTensor& tensor, int64_t hf_row) {
  if (tensor.head_dim == 0) return hf_row;
  const int64_t in_head = hf_row % tensor.head_dim, half = tensor.head_dim / 2;
  return hf_row - in_head + 2 * (in_head % half) + in_head / half;
}

}  // namespace hyperion::hugging_face
