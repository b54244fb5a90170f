// ExpertArgs: the experts of a model, how tokens choose them, and which blocks have them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/choice.h"
#include "models/args/dimension_checks.h"

namespace hyperion::models {

enum class ScoreFunction { kSoftmax, kSigmoid };
constexpr auto choices(ScoreFunction) {
  return choice_list<ScoreFunction>(
      {{ScoreFunction::kSoftmax, "softmax"}, {ScoreFunction::kSigmoid, "sigmoid"}});
}

// Coefficients of the router's auxiliary losses (models/parts/experts/router_losses.h); 0: without the loss.
struct RouterLossArgs {
  double z = 0, sequence = 0, global = 0;

  constexpr bool any() const { return z > 0 || sequence > 0 || global > 0; }
};

struct ExpertArgs {
  int64_t num_experts = 0;                    // of a block; 0: no block has any
  int64_t n_dense_layers = 0, moe_every = 1;  // see are_in()
  int64_t hidden_dim = 0;                     // moe_hidden_dim: width of one expert's SwiGLU
  bool clamped = false;                       // gpt_oss's experts: see ExpertStacks
  bool router_bias = false;                   // a learned bias of the router's gate
  int64_t num_shared_experts = 0;             // that every token goes to: one SwiGLU of their widths together
  int64_t top_k = 1;                          // that a token goes to in addition
  ScoreFunction score_func = ScoreFunction::kSoftmax;
  bool route_norm = false;            // a token's weights are divided by their sum
  double route_scale = 1;             // and multiplied by this
  bool score_before_experts = false;  // the experts' input is multiplied by the weights, else their output
  int64_t expert_groups = 0, limited_groups = 0;  // a token's experts are of limited_groups groups; 0: of any
  double load_balance_coeff = 0;                  // of the update of expert_bias in each step; 0: none
  RouterLossArgs losses{};
  bool force_load_balance = false;  // debug.moe_force_load_balance: round robin

  constexpr bool are_present() const { return num_experts > 0; }
  // Returns whether that block has experts: every moe_every-th one behind the first n_dense_layers.
  constexpr bool are_in(int64_t layer) const {
    return are_present() && layer >= n_dense_layers && (layer + 1) % moe_every == 0;
  }
  // Returns how many of a model's first n_layers blocks have experts.
  constexpr int64_t blocks(int64_t n_layers) const {
    const int64_t every = std::max<int64_t>(moe_every, 1), dense = std::min(n_dense_layers, n_layers);
    return are_present() ? n_layers / every - dense / every : 0;
  }
};

// Names the experts of a block as a module: their stacks are its w1, w2 and w3.
inline std::string experts_name(int64_t layer) {
  return "layers." + std::to_string(layer) + ".moe.experts";
}

void check(const ExpertArgs& experts, DimensionChecks& checks);

}  // namespace hyperion::models
