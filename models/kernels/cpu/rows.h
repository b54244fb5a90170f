// Vectorised loops over one row of floats, compiled for several instruction sets and chosen at load time. The
// fused CPU kernels are made of them: a row is widened into scratch that stays in the cache, worked on, and
// rounded back once.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>

#include <cstdint>

namespace hyperion::kernels::rows {

void widen(const c10::BFloat16* in, float* out, int64_t n);
void narrow(const float* in, c10::BFloat16* out, int64_t n);  // to nearest, ties to even; NaN stays NaN
inline void widen(const float* in, float* out, int64_t n) {
  std::copy(in, in + n, out);
}
inline void narrow(const float* in, float* out, int64_t n) {
  std::copy(in, in + n, out);
}

float sum_of_squares(const float* x, int64_t n);
// y = x * factor * w
void scale(const float* x, float factor, const float* w, float* y, int64_t n);
// RMSNorm's backward for one row: normed = x * rstd; dx = rstd * (g * w - normed * mean(g * w * normed)); dw
// += g * normed.
void rms_backward(const float* x, const float* w, const float* g, float rstd, float* dx, float* dw,
                  int64_t n);

// Rotates `heads` vectors of 2 * half elements by the angles of one position; `sign` -1 turns back.
void rotate_interleaved(const float* x, const float* cos, const float* sin, float sign, float* y,
                        int64_t heads, int64_t half);
void rotate_halves(const float* x, const float* cos, const float* sin, float sign, float* y, int64_t heads,
                   int64_t half);

// a = silu(gate)
void silu(const float* gate, float* a, int64_t n);
void multiply(const float* a, const float* b, float* y, int64_t n);
// d silu(gate) / d gate times g
void silu_backward(const float* gate, const float* g, float* dgate, int64_t n);

// log(sum(exp(x)))
float log_sum_exp(const float* x, int64_t n);
// most = max(x), -infinity for n = 0; sum = sum(exp(x - most))
void max_and_sum_exp(const float* x, int64_t n, float& most, float& sum);
// x = factor * exp(x - lse)
void softmax(float* x, float lse, float factor, int64_t n);

// Scratch of at least n floats for the calling thread; `slot` tells several apart.
float* scratch(int slot, int64_t n);

}  // namespace hyperion::kernels::rows
