#include "trainer/hugging_face/names.h"

#include <charconv>

#include "base/error.h"

namespace hyperion::hugging_face {
namespace {

// The same parameter here and there; * stands for the number of a block.
struct Names {
  std::string_view ours, theirs;
};
constexpr Names kNames[] = {
    {"tok_embeddings.weight", "model.embed_tokens.weight"},
    {"norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
    {"layers.*.attention.wq.weight", "model.layers.*.self_attn.q_proj.weight"},
    {"layers.*.attention.wk.weight", "model.layers.*.self_attn.k_proj.weight"},
    {"layers.*.attention.wv.weight", "model.layers.*.self_attn.v_proj.weight"},
    {"layers.*.attention.wo.weight", "model.layers.*.self_attn.o_proj.weight"},
    {"layers.*.attention.q_norm.weight", "model.layers.*.self_attn.q_norm.weight"},
    {"layers.*.attention.k_norm.weight", "model.layers.*.self_attn.k_norm.weight"},
    {"layers.*.feed_forward.w1.weight", "model.layers.*.mlp.gate_proj.weight"},
    {"layers.*.feed_forward.w2.weight", "model.layers.*.mlp.down_proj.weight"},
    {"layers.*.feed_forward.w3.weight", "model.layers.*.mlp.up_proj.weight"},
    {"layers.*.attention_norm.weight", "model.layers.*.input_layernorm.weight"},
    {"layers.*.ffn_norm.weight", "model.layers.*.post_attention_layernorm.weight"},
};

bool exists(const models::ModelArgs& args, std::string_view ours) {
  if (ours == "output.weight") return !args.tied;
  return args.qk_norm || !(ours.ends_with("q_norm.weight") || ours.ends_with("k_norm.weight"));
}

bool is_block(const models::ModelArgs& args, std::string_view number) {
  int64_t block = -1;
  std::from_chars(number.begin(), number.end(), block);
  return block >= 0 && block < args.n_layers && number == std::to_string(block);
}

// `name` in the other notation, or nothing.
std::optional<std::string> translate(const models::ModelArgs& args, std::string_view name,
                                     std::string_view Names::*from, std::string_view Names::*to) {
  for (const Names& names : kNames) {
    if (!exists(args, names.ours)) continue;
    const std::string_view pattern = names.*from;
    std::string result(names.*to);
    const size_t star = pattern.find('*');
    if (star == pattern.npos && name == pattern) return result;
    if (star == pattern.npos || name.size() < pattern.size()) continue;
    const std::string_view end = pattern.substr(star + 1);
    const std::string_view block = name.substr(star, name.size() - star - end.size());
    if (name.starts_with(pattern.substr(0, star)) && name.ends_with(end) && is_block(args, block))
      return result.replace(result.find('*'), 1, block);
  }
  return std::nullopt;
}

}  // namespace

HfTensor hf_tensor(const models::ModelArgs& args, std::string_view fqn) {
  const auto name = translate(args, fqn, &Names::ours, &Names::theirs);
  if (!name) throw_bug("parameter \"{}\" has no name in Hugging Face's {}", fqn, args.family);
  const bool rotated = fqn.ends_with("attention.wq.weight") || fqn.ends_with("attention.wk.weight");
  return {*name, rotated && args.rope_style == models::RopeStyle::kInterleaved ? args.head_dim : 0};
}

std::optional<std::string> parameter_of_hf(const models::ModelArgs& args, std::string_view name) {
  return translate(args, name, &Names::theirs, &Names::ours);
}

bool hf_may_ignore(const models::ModelArgs& args, std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq") || (args.tied && name == "lm_head.weight");
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
