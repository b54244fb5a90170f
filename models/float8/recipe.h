// How finely FP8 operands are scaled: torchao's three recipes for linear layers.
#pragma once

#include <array>
#include <string_view>

namespace hyperion::float8 {

enum class Recipe {
  kTensorwise,      // one scale a tensor; gradients in e5m2
  kRowwise,         // one scale a row of each operand, rounded down to a power of two; e4m3 throughout
  kRowwiseWithGwHp  // as kRowwise, but one scale for the weight in grad-input, and grad-weight in high
                    // precision
};

inline constexpr std::array kRecipeNames = {"tensorwise", "rowwise", "rowwise_with_gw_hp"};
inline std::string_view name_of(Recipe recipe) {
  return kRecipeNames[static_cast<size_t>(recipe)];
}

}  // namespace hyperion::float8
