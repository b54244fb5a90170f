// A linear layer's products in FP8: which operand is cast how, for each recipe.
#pragma once

#include <memory>

#include "models/float8/recipe.h"
#include "models/float8/scaled_matmul.h"
#include "models/linear.h"

namespace hyperion::float8 {

// What has been done, on the training thread.
struct Counters {
  int64_t products = 0;      // FP8 matrix products
  int64_t weight_casts = 0;  // copies of weights made from bf16; gathered ones are not counted
};

// Activations and gradients are cast for each product; torchao's order of rounding throughout. A weight is
// cast once as long as its contents stay, and not at all when it was gathered in FP8 (Parameter::encoded,
// tensor-wise in e4m3: the tensorwise recipe only).
std::shared_ptr<const LinearStrategy> make_strategy(Recipe recipe, Gemm gemm,
                                                    std::shared_ptr<Counters> counters);

// FP8 products in one backward of one layer.
constexpr int backward_products(Recipe recipe) {
  return recipe == Recipe::kRowwiseWithGwHp ? 1 : 2;
}

}  // namespace hyperion::float8
