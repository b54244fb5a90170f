#include "trainer/hugging_face/names.h"

#include <array>
#include <charconv>

#include "base/error.h"

namespace hyperion::hugging_face {
namespace {

struct Names {
  std::string_view ours, theirs;
};
constexpr std::array kModelNames = {
    Names{"tok_embeddings.weight", "model.embed_tokens.weight"},
    Names{"norm.weight", "model.norm.weight"},
    Names{"output.weight", "lm_head.weight"},
};
constexpr std::array kBlockNames = {
    Names{"attention.wq.weight", "self_attn.q_proj.weight"},
    Names{"attention.wk.weight", "self_attn.k_proj.weight"},
    Names{"attention.wv.weight", "self_attn.v_proj.weight"},
    Names{"attention.wo.weight", "self_attn.o_proj.weight"},
    Names{"attention.q_norm.weight", "self_attn.q_norm.weight"},
    Names{"attention.k_norm.weight", "self_attn.k_norm.weight"},
    Names{"feed_forward.w1.weight", "mlp.gate_proj.weight"},
    Names{"feed_forward.w2.weight", "mlp.down_proj.weight"},
    Names{"feed_forward.w3.weight", "mlp.up_proj.weight"},
    Names{"attention_norm.weight", "input_layernorm.weight"},
    Names{"ffn_norm.weight", "post_attention_layernorm.weight"},
};
constexpr std::string_view kOurBlock = "layers.", kTheirBlock = "model.layers.";

// "layers.12.REST" -> {12, REST} when 12 is one of the model's blocks.
struct BlockName {
  int64_t layer = 0;
  std::string_view rest;
};
std::optional<BlockName> block_name(const models::ModelArgs& args, std::string_view name,
                                    std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  BlockName block;
  const auto [end, error] = std::from_chars(name.begin(), name.end(), block.layer);
  const std::string_view digits(name.begin(), end);
  if (error != std::errc() || block.layer < 0 || block.layer >= args.n_layers ||
      digits != std::to_string(block.layer) || end == name.end() || *end != '.')
    return std::nullopt;
  block.rest = name.substr(digits.size() + 1);
  return block;
}

bool exists(const models::ModelArgs& args, std::string_view ours) {
  if (ours == "output.weight") return !args.tied;
  return args.qk_norm || (ours != "attention.q_norm.weight" && ours != "attention.k_norm.weight");
}

// `name` in the other notation, or nothing.
std::optional<std::string> translate(const models::ModelArgs& args, std::string_view name,
                                     std::string_view Names::*from, std::string_view Names::*to) {
  const bool to_theirs = to == &Names::theirs;
  for (const Names& names : kModelNames)
    if (names.*from == name && exists(args, names.ours)) return std::string(names.*to);
  const auto block = block_name(args, name, to_theirs ? kOurBlock : kTheirBlock);
  if (!block) return std::nullopt;
  for (const Names& names : kBlockNames)
    if (names.*from == block->rest && exists(args, names.ours))
      return fmt::format("{}{}.{}", to_theirs ? kTheirBlock : kOurBlock, block->layer, names.*to);
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
