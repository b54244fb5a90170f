// RopeArgs says how RoPE rotates heads and how its frequencies are rescaled.
#pragma once

#include <cstdint>

#include "models/args/dimension_checks.h"

namespace hyperion::models {

enum class RopeStyle {
  kInterleaved,  // rotates elements (2j, 2j+1): llama3
  kHalfSplit,    // rotates elements (j, j + head_dim/2): qwen3
};

struct RopeArgs {
  double theta = 500000.0;
  RopeStyle style = RopeStyle::kInterleaved;
  bool scaling = true;  // Llama 3.1's, by the four values below (rope_frequencies)
  double factor = 8, low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_length = 8192;
  // YaRN (arXiv 2309.00071) by `factor`, for sequences longer than original_length.
  bool yarn = false;
  double beta_fast = 32, beta_slow = 1;  // rotations, between which frequencies are blended
  // Scores grow by yarn_factor()^2: with latent attention their scale is multiplied by it, else cos and sin
  // are multiplied by yarn_factor(), as DeepSeek's and all other models of transformers have it.
  double mscale = 1;
  bool truncate = true;  // plain attention: the blended frequencies begin and end at whole indices
};

void check(const RopeArgs& rope, DimensionChecks& checks);

// Returns whether YaRN rescales the frequencies of a model with `yarn`: with `scaling` always, as in
// transformers, else if the model is trained with more than original_length tokens, as in v0.2.2.
constexpr bool scales_by_yarn(const RopeArgs& rope, int64_t trained_seq_len) {
  return rope.yarn && (rope.scaling || trained_seq_len > rope.original_length);
}

// Returns 0.1 mscale ln(factor) + 1.
double yarn_factor(const RopeArgs& rope);

}  // namespace hyperion::models
