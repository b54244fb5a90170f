// The dimensions that define a Llama-shaped model. A flavour is one value of this struct
// (models/flavors/registry.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/choice.h"
#include "models/flavors/activation.h"

namespace hyperion::models {

enum class RopeStyle {
  kInterleaved,  // rotates elements (2j, 2j+1): llama3
  kHalfSplit,    // rotates elements (j, j + head_dim/2): qwen3
};

constexpr auto choices(Activation) {
  return choice_list<Activation>({
#define ACTIVATION(name, text, ...) {Activation::k##name, text},
#include "models/flavors/activations.def"
  });
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
};

// Width of the SwiGLU by Llama's rule: int(8*dim/3), times `multiplier` when it is positive, rounded up to
// `multiple_of`.
constexpr int64_t swiglu_width(int64_t dim, double multiplier, int64_t multiple_of) {
  int64_t width = 2 * 4 * dim / 3;
  if (multiplier > 0) width = static_cast<int64_t>(multiplier * static_cast<double>(width));
  return (width + multiple_of - 1) / multiple_of * multiple_of;
}

struct ParameterCounts {
  int64_t total = 0;      // every parameter once
  int64_t embedding = 0;  // the token table, which costs no FLOPs (0 when the head reads it too)
};
ParameterCounts count_parameters(const ModelArgs& args);

}  // namespace hyperion::models
