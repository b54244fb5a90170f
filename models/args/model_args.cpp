#include "models/args/model_args.h"

#include <fmt/format.h>

namespace hyperion::models {

AttentionKind attention_kind(const ModelArgs& args) {
  return args.latent.is_present() ? AttentionKind::kLatent : AttentionKind::kPlain;
}

FeedForwardKind feed_forward_kind(const ModelArgs& args, int64_t layer) {
  return args.experts.are_in(layer) ? FeedForwardKind::kExperts : FeedForwardKind::kDense;
}

bool has_part(const ModelArgs& args, ModelPart part) {
  switch (part) {
    case ModelPart::kRescaled:
      return args.rope.scaling || args.rope.yarn;
    case ModelPart::kScaling:
      return args.rope.scaling;
    case ModelPart::kYarn:
      return args.rope.yarn;
    case ModelPart::kPlainYarn:
      return args.rope.yarn && !args.latent.is_present();
    case ModelPart::kWindow:
      return args.attention.window > 0;
    case ModelPart::kLatent:
      return args.latent.is_present();
    case ModelPart::kExperts:
    case ModelPart::kBalance:
      return args.experts.are_present();
    case ModelPart::kModel:
    case ModelPart::kTraining:
    case ModelPart::kYarnChoice:
      break;
  }
  return true;
}

PartSwitch switch_of(ModelPart part) {
  switch (part) {
    case ModelPart::kExperts:
    case ModelPart::kBalance:
      return {"experts", "num_experts"};
    case ModelPart::kLatent:
      return {"latent attention", "kv_lora_rank"};
    case ModelPart::kYarn:
    case ModelPart::kPlainYarn:
      return {"YaRN", "rope_yarn"};
    case ModelPart::kWindow:
      return {"a window", "sliding_window_size"};
    case ModelPart::kRescaled:
    case ModelPart::kScaling:
      return {"rescaled frequencies", "rope_scaling"};
    case ModelPart::kModel:
    case ModelPart::kTraining:
    case ModelPart::kYarnChoice:
      break;
  }
  return {};
}

void check(const ModelArgs& args, DimensionChecks& checks) {
  const AttentionArgs& attention = args.attention;
  checks.positive({"dim"}, args.dim);
  checks.in_range({"n_layers"}, args.n_layers, 1, kMaxLayers);
  checks.positive({"n_heads"}, attention.n_heads);
  checks.positive({"n_kv_heads"}, attention.n_kv_heads);
  checks.positive({"head_dim", "n_heads", "dim"}, attention.head_dim);
  checks.positive({"hidden_dim", "multiple_of", "ffn_dim_multiplier"}, args.dense.hidden_dim);
  checks.positive({"vocab_size"}, args.vocab_size);
  checks.positive({"max_seq_len"}, args.max_seq_len);
  checks.refuse_if(attention.n_kv_heads > 0 && attention.n_heads % attention.n_kv_heads != 0,
                   {"n_heads", "n_kv_heads"},
                   fmt::format("n_heads is {}, expected a multiple of n_kv_heads = {}", attention.n_heads,
                               attention.n_kv_heads));
  checks.refuse_if(
      !args.latent.is_present() && attention.head_dim % 2 != 0, {"head_dim", "n_heads", "dim"},
      fmt::format("head_dim is {}{}, expected an even number (RoPE rotates pairs)", attention.head_dim,
                  attention.n_heads > 0 && attention.head_dim == args.dim / attention.n_heads
                      ? fmt::format(" (dim {} / {} heads)", args.dim, attention.n_heads)
                      : ""));
  checks.in_range({"sliding_window_size"}, attention.window, 0, kLargestDimension);
  checks.in_range({"sliding_window_first_layer"}, attention.window_first_layer, 0, kMaxLayers);
  checks.in_range({"full_attention_every"}, attention.window_full_every, 0, kMaxLayers);
  checks.refuse_if(
      args.latent.is_present() && attention.window > 0, {"sliding_window_size", "kv_lora_rank"},
      fmt::format("sliding_window_size is {}, expected 0: latent attention has no window", attention.window));
  checks.refuse_if(args.latent.is_present() && attention.sinks, {"sinks", "kv_lora_rank"},
                   "sinks is true, expected false: latent attention has none");
  checks.refuse_if(
      args.experts.clamped && args.experts.are_present() && args.activation != Activation::kSilu,
      {"activation"},
      fmt::format("activation is \"{}\", expected \"silu\": gpt_oss's experts have a gate of their own",
                  text_of(args.activation)));
  check(args.latent, attention, checks);
  check(args.experts, checks);
  check(args.rope, checks);
  checks.require(args.norm_eps > 0, "norm_eps", args.norm_eps, "a number above 0");
  checks.fits_float("norm_eps", args.norm_eps);
}

}  // namespace hyperion::models
