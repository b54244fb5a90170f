#include "models/kernels/common/rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "base/processor.h"
#include "models/kernels/common/limits.h"

namespace hyperion::kernels::rows {
namespace {

// exp(x) by reduction to [-ln2/2, ln2/2] and its Taylor polynomial of degree 7: within 3 units in the last
// place. Branch-free, so that loops over it vectorise. 0 below -87.3 and infinity above 88.7, as exp in fp32.
inline __attribute__((always_inline)) float exp_fp32(float x) {
  const float clamped = std::min(std::max(x, -87.33654F), 88.72283F);
  const float k = std::nearbyintf(clamped * 1.44269504F);
  const float r = (clamped - k * 0.693359375F) + k * 2.12194440e-4F;  // ln2 in two parts
  float p = 1.0F / 5040.0F;
  p = p * r + 1.0F / 720.0F;
  p = p * r + 1.0F / 120.0F;
  p = p * r + 1.0F / 24.0F;
  p = p * r + 1.0F / 6.0F;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  // times 2^k, by adding k to the exponent of p
  const float value = std::bit_cast<float>(std::bit_cast<int32_t>(p) + (static_cast<int32_t>(k) << 23));
  const float bounded =
      x < -87.33654F ? 0.0F : (x > 88.72283F ? std::numeric_limits<float>::infinity() : value);
  return x == x ? bounded : x;
}

// Returns -infinity for n = 0; NaN counts as less than all. The maximum has several lanes, because each step
// of one waits for the step before.
inline __attribute__((always_inline)) float largest(const float* x, int64_t n) {
  constexpr int64_t kLanes = 32;
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, -std::numeric_limits<float>::infinity());
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] = std::max(lanes[lane], x[i + lane]);
  for (; i < n; ++i) lanes[0] = std::max(lanes[0], x[i]);
  return *std::max_element(lanes, lanes + kLanes);
}

// The number that a stored element is, and the element that a number is stored as: to nearest, ties to even;
// NaN stays NaN.
inline __attribute__((always_inline)) float wide(c10::BFloat16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.x) << 16);
}
inline __attribute__((always_inline)) float wide(float x) {
  return x;
}
template <typename T>
inline __attribute__((always_inline)) T narrowed(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    const auto bits = std::bit_cast<uint32_t>(x);
    const uint32_t upper = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    return T(static_cast<uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : upper), T::from_bits());
  }
}
// Returns x as a stored element holds it.
template <typename T>
inline __attribute__((always_inline)) float rounded(float x) {
  return wide(narrowed<T>(x));
}

// Sums in several lanes, as largest() does.
template <typename T>
inline __attribute__((always_inline)) float sum_of_products(const T* a, const T* b, int64_t n) {
  constexpr int64_t kLanes = 32;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += wide(a[i + lane]) * wide(b[i + lane]);
  for (; i < n; ++i) lanes[0] += wide(a[i]) * wide(b[i]);
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

// Calls rotate with `half` of a head: for the usual sizes of heads a type's constant, so that loops over it
// need no remainder.
template <typename F>
inline __attribute__((always_inline)) void with_half(int64_t half, const F& rotate) {
  if (half == 8)
    rotate(std::integral_constant<int64_t, 8>());
  else if (half == 32)
    rotate(std::integral_constant<int64_t, 32>());
  else if (half == 64)
    rotate(std::integral_constant<int64_t, 64>());
  else
    rotate(half);
}
template <typename Half>
inline __attribute__((always_inline)) void rotate_pairs(const float* __restrict x,
                                                        const float* __restrict cos,
                                                        const float* __restrict sin, float sign,
                                                        float* __restrict y, int64_t heads, Half half) {
  for (int64_t h = 0; h < heads; ++h, x += 2 * half, y += 2 * half)
    for (int64_t j = 0; j < half; ++j) {
      const float a = x[2 * j], b = x[2 * j + 1], s = sign * sin[j];
      y[2 * j] = a * cos[j] - b * s;
      y[2 * j + 1] = a * s + b * cos[j];
    }
}
template <typename Half>
inline __attribute__((always_inline)) void rotate_parts(const float* __restrict x,
                                                        const float* __restrict cos,
                                                        const float* __restrict sin, float sign,
                                                        float* __restrict y, int64_t heads, Half half) {
  for (int64_t h = 0; h < heads; ++h, x += 2 * half, y += 2 * half)
    for (int64_t j = 0; j < half; ++j) {
      const float a = x[j], b = x[half + j], s = sign * sin[j];
      y[j] = a * cos[j] - b * s;
      y[half + j] = b * cos[j] + a * s;
    }
}

template <typename T>
inline __attribute__((always_inline)) void add_elements(const T* __restrict a, const T* __restrict b,
                                                        T* __restrict sum, float* __restrict row, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    sum[i] = narrowed<T>(wide(a[i]) + wide(b[i]));
    row[i] = wide(sum[i]);
  }
}

inline __attribute__((always_inline)) float sigmoid(float x) {
  return 1.0F / (1.0F + exp_fp32(-x));
}

// Activation functions of a number: their value, and the number's gradient from that of the value.
template <models::Activation>
struct Function;
template <>
struct Function<models::Activation::kSilu> {
  inline __attribute__((always_inline)) explicit Function(float number) : x(number), s(sigmoid(number)) {}
  inline __attribute__((always_inline)) float value() const { return x * s; }
  inline __attribute__((always_inline)) float gradient(float grad) const {
    return grad * s * (1.0F + x * (1.0F - s));
  }
  float x, s;
};
// x / 2 (1 + tanh u) = x sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3): Hendrycks & Gimpel, arXiv
// 1606.08415.
template <>
struct Function<models::Activation::kGeluTanh> {
  static constexpr float kTwice = 1.5957691216F, kCubic = 0.044715F;  // 2 sqrt(2 / pi)
  inline __attribute__((always_inline)) explicit Function(float number)
      : x(number), s(sigmoid(kTwice * (number + kCubic * number * number * number))) {}
  inline __attribute__((always_inline)) float value() const { return x * s; }
  inline __attribute__((always_inline)) float gradient(float grad) const {
    return grad * (s + x * s * (1.0F - s) * kTwice * (1.0F + 3.0F * kCubic * x * x));
  }
  float x, s;
};

template <models::Activation kActivation, typename T>
inline __attribute__((always_inline)) void gated_elements(const T* __restrict gate, const T* __restrict up,
                                                          T* __restrict y, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    y[i] = narrowed<T>(rounded<T>(Function<kActivation>(wide(gate[i])).value()) * wide(up[i]));
}

template <models::Activation kActivation, typename T>
inline __attribute__((always_inline)) void gated_backward_elements(const T* __restrict grad,
                                                                   const T* __restrict gate,
                                                                   const T* __restrict up,
                                                                   T* __restrict dgate, T* __restrict dup,
                                                                   int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = wide(gate[i]), d = wide(grad[i]);
    const Function<kActivation> act(g);
    dup[i] = narrowed<T>(rounded<T>(act.value()) * d);
    dgate[i] = narrowed<T>(act.gradient(rounded<T>(d * wide(up[i]))));
  }
}

template <typename T>
inline __attribute__((always_inline)) void add_to_elements(const T* __restrict added, T* __restrict x,
                                                           int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = narrowed<T>(wide(x[i]) + wide(added[i]));
}

constexpr auto kClamp = static_cast<float>(kGateLimit), kSlope = static_cast<float>(kGateSlope);

// A NaN stays NaN.
inline __attribute__((always_inline)) float clamped_above(float x) {
  return x > kClamp ? kClamp : x;
}
inline __attribute__((always_inline)) float clamped(float x) {
  return x < -kClamp ? -kClamp : clamped_above(x);
}

template <typename T>
inline __attribute__((always_inline)) void clamped_pairs(const T* __restrict h, T* __restrict y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float gate = clamped_above(wide(h[2 * i])), up = clamped(wide(h[2 * i + 1]));
    y[i] = narrowed<T>(gate * sigmoid(gate * kSlope) * (up + 1.0F));
  }
}

template <typename T>
inline __attribute__((always_inline)) void clamped_backward_pairs(const T* __restrict grad,
                                                                  const T* __restrict h, T* __restrict dh,
                                                                  int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = wide(h[2 * i]), u = wide(h[2 * i + 1]), d = wide(grad[i]);
    const float gate = clamped_above(g), up = clamped(u), s = sigmoid(gate * kSlope);
    const float of_gate = d * (up + 1.0F) * (s + gate * kSlope * s * (1.0F - s)), of_up = d * (gate * s);
    dh[2 * i] = narrowed<T>(g > kClamp ? 0.0F : of_gate);
    dh[2 * i + 1] = narrowed<T>(u > kClamp || u < -kClamp ? 0.0F : of_up);
  }
}

}  // namespace

HYPERION_VECTORISED void widen(const c10::BFloat16* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = wide(in[i]);
}

HYPERION_VECTORISED void narrow(const float* in, c10::BFloat16* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = narrowed<c10::BFloat16>(in[i]);
}

HYPERION_VECTORISED float sum_of_squares(const float* x, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

HYPERION_VECTORISED void scale(const float* x, float factor, const float* w, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * factor * w[i];
}

HYPERION_VECTORISED void rms_backward(const float* x, const float* w, const float* g, float rstd, float* dx,
                                      float* dw, int64_t n) {
  float dot = 0;
  for (int64_t i = 0; i < n; ++i) dot += g[i] * w[i] * x[i];
  const float correction = rstd * rstd * dot / static_cast<float>(n);
  for (int64_t i = 0; i < n; ++i) {
    dw[i] += g[i] * x[i] * rstd;
    dx[i] = rstd * (g[i] * w[i] - x[i] * correction);
  }
}

HYPERION_VECTORISED void rotate_interleaved(const float* x, const float* cos, const float* sin, float sign,
                                            float* y, int64_t heads, int64_t half) {
  with_half(
      half, [&](auto size)
                __attribute__((always_inline)) { rotate_pairs(x, cos, sin, sign, y, heads, size); });
}

HYPERION_VECTORISED void rotate_halves(const float* x, const float* cos, const float* sin, float sign,
                                       float* y, int64_t heads, int64_t half) {
  with_half(
      half, [&](auto size)
                __attribute__((always_inline)) { rotate_parts(x, cos, sin, sign, y, heads, size); });
}

HYPERION_VECTORISED void add(const c10::BFloat16* a, const c10::BFloat16* b, c10::BFloat16* sum, float* row,
                             int64_t n) {
  add_elements(a, b, sum, row, n);
}
HYPERION_VECTORISED void add(const float* a, const float* b, float* sum, float* row, int64_t n) {
  add_elements(a, b, sum, row, n);
}

HYPERION_VECTORISED void narrow_and_add(const float* x, const c10::BFloat16* b, c10::BFloat16* out,
                                        int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = narrowed<c10::BFloat16>(rounded<c10::BFloat16>(x[i]) + wide(b[i]));
}
HYPERION_VECTORISED void narrow_and_add(const float* x, const float* b, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] + b[i];
}

HYPERION_VECTORISED void gated_activation(models::Activation activation, const c10::BFloat16* gate,
                                          const c10::BFloat16* up, c10::BFloat16* y, int64_t n) {
  models::with_activation(
      activation, [&](auto act) __attribute__((always_inline)) { gated_elements<act>(gate, up, y, n); });
}
HYPERION_VECTORISED void gated_activation(models::Activation activation, const float* gate, const float* up,
                                          float* y, int64_t n) {
  models::with_activation(
      activation, [&](auto act) __attribute__((always_inline)) { gated_elements<act>(gate, up, y, n); });
}

HYPERION_VECTORISED void gated_activation_backward(models::Activation activation, const c10::BFloat16* grad,
                                                   const c10::BFloat16* gate, const c10::BFloat16* up,
                                                   c10::BFloat16* dgate, c10::BFloat16* dup, int64_t n) {
  models::with_activation(
      activation, [&](auto act) __attribute__((always_inline)) {
        gated_backward_elements<act>(grad, gate, up, dgate, dup, n);
      });
}
HYPERION_VECTORISED void gated_activation_backward(models::Activation activation, const float* grad,
                                                   const float* gate, const float* up, float* dgate,
                                                   float* dup, int64_t n) {
  models::with_activation(
      activation, [&](auto act) __attribute__((always_inline)) {
        gated_backward_elements<act>(grad, gate, up, dgate, dup, n);
      });
}

HYPERION_VECTORISED void add_to(const c10::BFloat16* added, c10::BFloat16* x, int64_t n) {
  add_to_elements(added, x, n);
}
HYPERION_VECTORISED void add_to(const float* added, float* x, int64_t n) {
  add_to_elements(added, x, n);
}

HYPERION_VECTORISED void clamped_gate(const c10::BFloat16* h, c10::BFloat16* y, int64_t n) {
  clamped_pairs(h, y, n);
}
HYPERION_VECTORISED void clamped_gate(const float* h, float* y, int64_t n) {
  clamped_pairs(h, y, n);
}
HYPERION_VECTORISED void clamped_gate_backward(const c10::BFloat16* grad, const c10::BFloat16* h,
                                               c10::BFloat16* dh, int64_t n) {
  clamped_backward_pairs(grad, h, dh, n);
}
HYPERION_VECTORISED void clamped_gate_backward(const float* grad, const float* h, float* dh, int64_t n) {
  clamped_backward_pairs(grad, h, dh, n);
}

HYPERION_VECTORISED void exponentials(float* x, int64_t n, float& max_of, float& sum_of) {
  const float maximum = largest(x, n);
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    x[i] = exp_fp32(x[i] - maximum);
    sum += x[i];
  }
  max_of = maximum;
  sum_of = sum;
}

HYPERION_VECTORISED void narrow_scaled(const float* x, float factor, c10::BFloat16* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = narrowed<c10::BFloat16>(x[i] * factor);
}
HYPERION_VECTORISED void narrow_scaled(const float* x, float factor, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * factor;
}

HYPERION_VECTORISED void narrow_scaled(const c10::BFloat16* x, float factor, c10::BFloat16* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = narrowed<c10::BFloat16>(wide(x[i]) * factor);
}

HYPERION_VECTORISED void add_scaled(const c10::BFloat16* x, float factor, float* sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += factor * wide(x[i]);
}
HYPERION_VECTORISED void add_scaled(const float* x, float factor, float* sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += factor * x[i];
}

HYPERION_VECTORISED float dot(const c10::BFloat16* a, const c10::BFloat16* b, int64_t n) {
  return sum_of_products(a, b, n);
}
HYPERION_VECTORISED float dot(const float* a, const float* b, int64_t n) {
  return sum_of_products(a, b, n);
}

HYPERION_VECTORISED void softmax(float* x, float lse, float factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = factor * exp_fp32(x[i] - lse);
}

HYPERION_VECTORISED void adam(const AdamNumbers& numbers, const float* grad, float* weight, float* m,
                              float* v, int64_t n) {
  const AdamNumbers k = numbers;
  for (int64_t i = 0; i < n; ++i) {
    float g = grad[i] / k.divisor;
    if (k.added_decay != 0) g += k.added_decay * weight[i];
    // The nearer end of the interpolation is the one that is corrected, as in at::lerp.
    m[i] = k.rest1 < 0.5F ? m[i] + k.rest1 * (g - m[i]) : g - k.beta1 * (g - m[i]);
    v[i] = k.beta2 * v[i] + k.rest2 * g * g;
    weight[i] = weight[i] * k.shrink - k.step_size * m[i] / (std::sqrt(v[i]) / k.root_of_correction2 + k.eps);
  }
}

}  // namespace hyperion::kernels::rows
