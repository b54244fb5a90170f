// The CPU loops of rounded.h over consecutive elements. Products and sums are not contracted, so that the
// results are those of the plain form; compiled for several instruction sets.
#pragma once

#include <cstdint>

namespace hyperion::kernels::rows {

// RoundedAdamNumbers are the coefficients of the update; `root2` is the square root of the second moment's
// bias correction.
struct RoundedAdamNumbers {
  float divisor, shrink, added_decay, beta1, rest1, beta2, rest2, root2, eps, step_size;
};
struct RoundedMomentumNumbers {
  float momentum, rest;
  bool nesterov, skipped;
};

// words[4 b + j] = word j of block first + b.
void random_words(uint64_t key, uint64_t counter_high, uint64_t first, int64_t blocks, uint32_t* words);

// `m`, `v` and `copy` hold the bits of bf16 numbers; `copy` may be null.
void rounded_adam(const RoundedAdamNumbers& numbers, const uint32_t* words, const float* grad, float* weight,
                  uint16_t* m, uint16_t* v, uint16_t* copy, int64_t n);
void rounded_momentum(const RoundedMomentumNumbers& numbers, const uint32_t* words, float* grad, uint16_t* m,
                      int64_t n);

}  // namespace hyperion::kernels::rows
