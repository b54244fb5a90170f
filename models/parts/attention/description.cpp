#include "models/parts/attention/description.h"

namespace hyperion::models {

PartDescription describe_attention(const ModelArgs& args, int64_t layer) {
  const AttentionArgs& attention = args.attention;
  const int64_t queries = attention.n_heads * attention.head_dim,
                keys = attention.n_kv_heads * attention.head_dim;
  const auto theirs = [](const char* name, bool rotated = false) {
    return HuggingFaceTensor{.name = std::string("model.layers.*.self_attn.") + name + ".weight",
                             .rotated = rotated};
  };
  // v0.2.2 draws everything in a block of gpt_oss alike, biases too.
  const bool alike = args.family == "gpt_oss";
  const Draw of_readers = alike ? Draw::kResidual : Draw::kInput,
             of_biases = alike ? Draw::kResidual : Draw::kZeros;
  PartDescription part{
      .parameters = {{.name = "attention.wq.weight",
                      .dims = {queries, args.dim},
                      .draw = of_readers,
                      .split = kSplitByRows,
                      .hugging_face = theirs("q_proj", /*rotated=*/true)},
                     {.name = "attention.wk.weight",
                      .dims = {keys, args.dim},
                      .draw = of_readers,
                      .split = kSplitByRows,
                      .hugging_face = theirs("k_proj", /*rotated=*/true)},
                     {.name = "attention.wv.weight",
                      .dims = {keys, args.dim},
                      .draw = of_readers,
                      .split = kSplitByRows,
                      .hugging_face = theirs("v_proj")},
                     {.name = "attention.wo.weight",
                      .dims = {args.dim, queries},
                      .draw = Draw::kResidual,
                      .split = kSplitByColumns,
                      .hugging_face = theirs("o_proj")}},
      .attention = AttentionWidths{.heads = attention.n_heads,
                                   .kv_heads = attention.n_kv_heads,
                                   .head_dim = attention.head_dim,
                                   .v_head_dim = attention.head_dim,
                                   .rotated = attention.head_dim,
                                   .window = attention.window_of(layer)},
      .extents = {{.what = "heads", .extent = attention.n_heads, .evenly = true},
                  {.what = "key-value heads", .extent = attention.n_kv_heads, .evenly = true}}};
  if (attention.qk_norm)
    part.parameters.insert(
        part.parameters.end(),
        {{.name = "attention.q_norm.weight", .dims = {attention.head_dim}, .hugging_face = theirs("q_norm")},
         {.name = "attention.k_norm.weight",
          .dims = {attention.head_dim},
          .hugging_face = theirs("k_norm")}});
  if (attention.sinks)
    part.parameters.push_back({.name = "attention.sinks",
                               .dims = {attention.n_heads},
                               .draw = Draw::kResidual,
                               .split = kSplitByRows,
                               .hugging_face = {.name = "model.layers.*.self_attn.sinks"}});
  if (attention.qkv_bias)
    add_biases(part, {"attention.wq.weight", "attention.wk.weight", "attention.wv.weight"}, of_biases);
  if (attention.output_bias) add_biases(part, {"attention.wo.weight"}, of_biases);
  return part;
}

}  // namespace hyperion::models
