// The granularity of FP8 scales: torchao's recipes for linear layers and for experts.
#pragma once

#include <cstdint>

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

// MXFP8: blocks of 32 numbers with a power of two each, e4m3 throughout.
enum class MxRecipe {
  kEmulated,    // as kCublas, in the compute dtype on any device
  kCublas,      // powers rounded down: the largest numbers of a block may saturate
  kCublasRceil  // powers rounded up
};
constexpr auto choices(MxRecipe) {
  return choice_list<MxRecipe>({{MxRecipe::kEmulated, "mxfp8_emulated"},
                                {MxRecipe::kCublas, "mxfp8_cublas"},
                                {MxRecipe::kCublasRceil, "mxfp8_cublas_rceil"}});
}

// Grouped products of experts, e4m3 throughout.
enum class GroupedRecipe {
  kRowwise,  // one scale for each row of both operands, rounded down to a power of two
  kMx        // blocks of 32 with a power of two each, rounded up
};

// Returns the multiple to which groups of rows are padded, and which divides the widths of experts.
constexpr int64_t unit_of(GroupedRecipe recipe) {
  return recipe == GroupedRecipe::kMx ? 32 : 16;
}

}  // namespace hyperion::float8
