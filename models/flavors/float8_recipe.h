// How finely FP8 operands are scaled: torchao's three recipes for linear layers.
#pragma once

#include "base/choice.h"

namespace hyperion::float8 {

enum class Recipe {
  kTensorwise,      // one scale per tensor; gradients in e5m2
  kRowwise,         // one scale per row of each operand, rounded down to a power of two; e4m3 throughout
  kRowwiseWithGwHp  // as kRowwise, but one scale for the weight in grad-input, and grad-weight in high
                    // precision
};
constexpr auto choices(Recipe) {
  return choice_list<Recipe>({{Recipe::kTensorwise, "tensorwise"},
                              {Recipe::kRowwise, "rowwise"},
                              {Recipe::kRowwiseWithGwHp, "rowwise_with_gw_hp"}});
}

}  // namespace hyperion::float8
