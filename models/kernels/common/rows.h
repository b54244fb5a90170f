// Vectorised loops over one row of floats, compiled for several instruction sets, of which one is chosen at
// load time. A fused CPU kernel widens a row into scratch in the cache, calls these loops on it, and rounds
// it once.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>

#include "models/args/activation.h"

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
// The backward of RMSNorm for one row: normed = x * rstd; dx = rstd * (g * w - normed * mean(g * w *
// normed)); dw += g * normed.
void rms_backward(const float* x, const float* w, const float* g, float rstd, float* dx, float* dw,
                  int64_t n);

// Rotates `heads` vectors of 2 * half elements by the angles of one position. sign = -1 is the inverse
// rotation.
void rotate_interleaved(const float* x, const float* cos, const float* sin, float sign, float* y,
                        int64_t heads, int64_t half);
void rotate_halves(const float* x, const float* cos, const float* sin, float sign, float* y, int64_t heads,
                   int64_t half);

// sum = a + b, rounded; row = sum in fp32
void add(const c10::BFloat16* a, const c10::BFloat16* b, c10::BFloat16* sum, float* row, int64_t n);
void add(const float* a, const float* b, float* sum, float* row, int64_t n);
// x += added, rounded
void add_to(const c10::BFloat16* added, c10::BFloat16* x, int64_t n);
void add_to(const float* added, float* x, int64_t n);
// out = round(x) + b
void narrow_and_add(const float* x, const c10::BFloat16* b, c10::BFloat16* out, int64_t n);
void narrow_and_add(const float* x, const float* b, float* out, int64_t n);

// y = round(activation(gate)) * up
void gated_activation(models::Activation activation, const c10::BFloat16* gate, const c10::BFloat16* up,
                      c10::BFloat16* y, int64_t n);
void gated_activation(models::Activation activation, const float* gate, const float* up, float* y, int64_t n);
// The backward of gated_activation(). The products grad * up and activation(gate) are rounded, like those of
// two separate operations.
void gated_activation_backward(models::Activation activation, const c10::BFloat16* grad,
                               const c10::BFloat16* gate, const c10::BFloat16* up, c10::BFloat16* dgate,
                               c10::BFloat16* dup, int64_t n);
void gated_activation_backward(models::Activation activation, const float* grad, const float* gate,
                               const float* up, float* dgate, float* dup, int64_t n);

// Computes the clamped gate of n pairs h[2 i], h[2 i + 1] and the gradient of h
// (models/kernels/clamped_gate/clamped_gate.h).
void clamped_gate(const c10::BFloat16* h, c10::BFloat16* y, int64_t n);
void clamped_gate(const float* h, float* y, int64_t n);
void clamped_gate_backward(const c10::BFloat16* grad, const c10::BFloat16* h, c10::BFloat16* dh, int64_t n);
void clamped_gate_backward(const float* grad, const float* h, float* dh, int64_t n);

// max = max(x), -infinity for n = 0; x = exp(x - max); sum = sum(x)
void exponentials(float* x, int64_t n, float& max, float& sum);
// out = x * factor
void narrow_scaled(const float* x, float factor, c10::BFloat16* out, int64_t n);
void narrow_scaled(const float* x, float factor, float* out, int64_t n);
void narrow_scaled(const c10::BFloat16* x, float factor, c10::BFloat16* out, int64_t n);
// sum += x * factor
void add_scaled(const c10::BFloat16* x, float factor, float* sum, int64_t n);
void add_scaled(const float* x, float factor, float* sum, int64_t n);
// Returns the sum of a * b, in an order that depends only on n and on the instruction set.
float dot(const c10::BFloat16* a, const c10::BFloat16* b, int64_t n);
float dot(const float* a, const float* b, int64_t n);
// x = factor * exp(x - lse)
void softmax(float* x, float lse, float factor, int64_t n);

// The coefficients of an Adam update: the gradient is divided by `divisor`, and added_decay * weight is added
// to it; the weight is multiplied by `shrink`; rest = 1 - beta; root_of_correction2 = sqrt(1 - beta2^t).
struct AdamNumbers {
  float divisor, shrink, added_decay, beta1, rest1, beta2, rest2, root_of_correction2, eps, step_size;
};
// Updates n weights and their moments m and v (models/kernels/adam/adam.h).
void adam(const AdamNumbers& numbers, const float* grad, float* weight, float* m, float* v, int64_t n);

}  // namespace hyperion::kernels::rows
