#include "models/parts/latent_attention/description.h"

namespace hyperion::models {
namespace {

// Describes a linear layer that reads the stream or a latent. split = nullopt: it is replicated, and each
// tensor parallel rank applies it to its part of every sequence. `heads`: the matrices that its rows are.
ParameterShape latent_projection(const char* name, const char* theirs, int64_t out, int64_t in,
                                 std::optional<int> split, int64_t heads = 1) {
  return {.name = std::string("attention.") + name + ".weight",
          .dims = {out, in},
          .draw = Draw::kInput,
          .matrices = heads,
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
  const AttentionArgs& attention = args.attention;
  const LatentArgs& latent = args.latent;
  const int64_t queries = attention.n_heads * attention.head_dim,
                values = attention.n_heads * latent.v_head_dim;
  PartDescription part;
  if (latent.q_lora_rank > 0)
    part.parameters = {
        latent_projection("wq_a", "q_a_proj", latent.q_lora_rank, args.dim, {}),
        latent_norm("q_norm", "q_a_layernorm", latent.q_lora_rank),
        latent_projection("wq_b", "q_b_proj", queries, latent.q_lora_rank, kSplitByRows, attention.n_heads)};
  else
    part.parameters = {latent_projection("wq", "q_proj", queries, args.dim, kSplitByRows, attention.n_heads)};
  part.parameters.insert(part.parameters.end(),
                         {latent_projection("wkv_a", "kv_a_proj_with_mqa",
                                            latent.kv_lora_rank + latent.qk_rope_head_dim, args.dim, {}),
                          latent_norm("kv_norm", "kv_a_layernorm", latent.kv_lora_rank),
                          latent_projection("wkv_b", "kv_b_proj",
                                            attention.n_heads * (latent.qk_nope_head_dim + latent.v_head_dim),
                                            latent.kv_lora_rank, kSplitByRows, attention.n_heads),
                          {.name = "attention.wo.weight",
                           .dims = {args.dim, values},
                           .draw = Draw::kResidual,
                           .split = kSplitByColumns,
                           .hugging_face = {.name = "model.layers.*.self_attn.o_proj.weight"}}});
  part.attention = AttentionWidths{.heads = attention.n_heads,
                                   .kv_heads = attention.n_heads,
                                   .head_dim = attention.head_dim,
                                   .v_head_dim = latent.v_head_dim,
                                   .rotated = latent.qk_rope_head_dim};
  part.extents = {{.what = "heads", .extent = attention.n_heads, .evenly = true},
                  {.what = "key-value heads", .extent = attention.n_kv_heads, .evenly = true}};
  return part;
}

}  // namespace hyperion::models
