// The dimensions that define a Llama-shaped model. A flavour is one value of this struct
// (models/flavors/registry.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/choice.h"
#include "models/args/activation.h"

namespace hyperion::models {

// More than any model has: what is made for each block or each expert must not exhaust memory before the
// model is refused.
constexpr int64_t kMostLayers = 10'000, kMostExperts = 65'536;

enum class RopeStyle {
  kInterleaved,  // rotates elements (2j, 2j+1): llama3
  kHalfSplit,    // rotates elements (j, j + head_dim/2): qwen3
};

constexpr auto choices(Activation) {
  return choice_list<Activation>({
#define ACTIVATION(name, text, ...) {Activation::k##name, text},
#include "models/args/activations.def"
  });
}

enum class ScoreFunction { kSoftmax, kSigmoid };
constexpr auto choices(ScoreFunction) {
  return choice_list<ScoreFunction>(
      {{ScoreFunction::kSoftmax, "softmax"}, {ScoreFunction::kSigmoid, "sigmoid"}});
}

struct ModelArgs {
  std::string family = "llama3";
  int64_t dim = 256;
  int64_t n_layers = 6;
  int64_t n_heads = 16;
  int64_t n_kv_heads = 16;
  int64_t head_dim = 16;
  int64_t hidden_dim = 768;  // width of the SwiGLU
  int64_t vocab_size = 2048;
  int64_t max_seq_len = 2048;
  double norm_eps = 1e-5;
  double rope_theta = 500000.0;
  bool rope_scaling = true;  // Llama 3.1's, by the four values below (rope_frequencies)
  double rope_factor = 8, rope_low_freq_factor = 1, rope_high_freq_factor = 4;
  int64_t rope_original_length = 8192;
  RopeStyle rope_style = RopeStyle::kInterleaved;
  Activation activation = Activation::kSilu;  // of the feed-forward's gate
  bool qk_norm = false;                       // RMSNorm of each query and key head
  bool tied = false;                          // the head reads the embedding table
  bool depth_init = true;

  // Latent attention (models/parts/latent_attention/latent_attention.h); head_dim is the sum of the next two.
  int64_t kv_lora_rank = 0;  // width of the latent of keys and values; 0: plain attention
  int64_t qk_nope_head_dim = 0,
          qk_rope_head_dim = 0;  // elements of a head's queries and keys: plain, rotated
  int64_t v_head_dim = 0;
  int64_t q_lora_rank = 0;  // width of the latent of queries; 0: they have none
  // YaRN (arXiv 2309.00071) by rope_factor, for sequences longer than rope_original_length.
  bool rope_yarn = false;
  double rope_beta_fast = 32, rope_beta_slow = 1;  // rotations, between which frequencies are blended
  double rope_mscale = 1;  // attention's scale is multiplied by (0.1 this ln(rope_factor) + 1)^2

  // Experts (models/parts/experts), in the blocks of has_experts().
  int64_t num_experts = 0;  // of a block; 0: no block has any
  int64_t n_dense_layers = 0, moe_every = 1;
  int64_t moe_hidden_dim = 0;      // width of one expert's SwiGLU
  int64_t num_shared_experts = 0;  // that every token goes to: one SwiGLU of their widths together
  int64_t top_k = 1;               // that a token goes to in addition
  ScoreFunction score_func = ScoreFunction::kSoftmax;
  bool route_norm = false;            // a token's weights are divided by their sum
  double route_scale = 1;             // and multiplied by this
  bool score_before_experts = false;  // the experts' input is multiplied by the weights, else their output
  int64_t expert_groups = 0, limited_groups = 0;  // a token's experts are of limited_groups groups; 0: of any
  double load_balance_coeff = 0;                  // of the update of expert_bias in each step; 0: none
  bool masks_documents = false;                   // v0.2.2's flavour does, whatever training.document_mask is
  bool force_load_balance = false;                // debug.moe_force_load_balance: round robin
};

// Of a block's experts, as a module: their stacks are w1, w2 and w3 of it.
inline std::string experts_name(int64_t layer) {
  return "layers." + std::to_string(layer) + ".moe.experts";
}

// Returns whether that block has experts: every moe_every-th one behind the first n_dense_layers.
constexpr bool has_experts(const ModelArgs& args, int64_t layer) {
  return args.num_experts > 0 && layer >= args.n_dense_layers && (layer + 1) % args.moe_every == 0;
}

constexpr int64_t blocks_with_experts(const ModelArgs& args) {
  if (args.num_experts == 0) return 0;
  // Of the blocks up to a number, as has_experts() says.
  const int64_t every = std::max<int64_t>(args.moe_every, 1),
                dense = std::min(args.n_dense_layers, args.n_layers);
  return args.n_layers / every - dense / every;
}

// Width of the SwiGLU by Llama's rule: int(8*dim/3), times `multiplier` when it is positive, rounded up to
// `multiple_of`.
constexpr int64_t swiglu_width(int64_t dim, double multiplier, int64_t multiple_of) {
  int64_t width = 2 * 4 * dim / 3;
  if (multiplier > 0) width = static_cast<int64_t>(multiplier * static_cast<double>(width));
  return (width + multiple_of - 1) / multiple_of * multiple_of;
}

}  // namespace hyperion::models
