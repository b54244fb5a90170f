#include "models/parts/latent_attention/description.h"

namespace hyperion::models {
namespace {

// Describes a linear layer that reads the stream or a latent. split = nullopt: it is replicated, and each
// tensor parallel rank applies it to its part of every sequence.
ParameterShape latent_projection(const char* name, const char* theirs, int64_t out, int64_t in,
                                 std::optional<int> split) {
  return {.name = std::string("attention.") + name + ".weight",
          .dims = {out, in},
          .draw = Draw::kInput,
          .split = split,
          .hugging_face = {.name = std::string("model.layers.*.self_attn.") + theirs + ".weight"}};
}

ParameterShape latent_norm(const char* name, const char* theirs, int64_t width) {
  return {.name = std::string("attention.") + name + ".weight",
          .dims = {width},
          .hugging_face = {.name = std::string("model.layers.*.self_attn.") + theirs + ".weight"}};
}

}  // namespace

PartDescription describe_latent_attention(const ModelArgs& args) {
  const int64_t queries = args.attention.n_heads * args.attention.head_dim,
                values = args.attention.n_heads * args.latent.v_head_dim;
  PartDescription part;
  if (args.latent.q_lora_rank > 0)
    part.parameters = {latent_projection("wq_a", "q_a_proj", args.latent.q_lora_rank, args.dim, {}),
                       latent_norm("q_norm", "q_a_layernorm", args.latent.q_lora_rank),
                       latent_projection("wq_b", "q_b_proj", queries, args.latent.q_lora_rank, kSplitByRows)};
  else
    part.parameters = {latent_projection("wq", "q_proj", queries, args.dim, kSplitByRows)};
  part.parameters.insert(
      part.parameters.end(),
      {latent_projection("wkv_a", "kv_a_proj_with_mqa",
                         args.latent.kv_lora_rank + args.latent.qk_rope_head_dim, args.dim, {}),
       latent_norm("kv_norm", "kv_a_layernorm", args.latent.kv_lora_rank),
       latent_projection("wkv_b", "kv_b_proj",
                         args.attention.n_heads * (args.latent.qk_nope_head_dim + args.latent.v_head_dim),
                         args.latent.kv_lora_rank, kSplitByRows),
       {.name = "attention.wo.weight",
        .dims = {args.dim, values},
        .draw = Draw::kResidual,
        .split = kSplitByColumns,
        .hugging_face = {.name = "model.layers.*.self_attn.o_proj.weight"}}});
  part.attention = AttentionWidths{.heads = args.attention.n_heads,
                                   .kv_heads = args.attention.n_heads,
                                   .head_dim = args.attention.head_dim,
                                   .v_head_dim = args.latent.v_head_dim,
                                   .rotated = args.latent.qk_rope_head_dim};
  part.weight_gradient_inputs = {.scattered = args.dim};  // of wo alone, the least there is
  part.extents = {{.what = "heads", .extent = args.attention.n_heads, .evenly = true},
                  {.what = "key-value heads", .extent = args.attention.n_kv_heads, .evenly = true}};
  return part;
}

}  // namespace hyperion::models
