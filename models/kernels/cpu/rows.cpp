#include "models/kernels/cpu/rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HYPERION_VECTORISED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else  // elsewhere the baseline has vectors; a sanitizer must see the calls that load-time selection makes
       // too early
#define HYPERION_VECTORISED
#endif

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

inline __attribute__((always_inline)) void add_up_exp(const float* x, int64_t n, float& most_of,
                                                      float& sum_of) {
  float most = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < n; ++i) most = std::max(most, x[i]);
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += exp_fp32(x[i] - most);
  most_of = most;
  sum_of = sum;
}

}  // namespace

HYPERION_VECTORISED void widen(const c10::BFloat16* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = std::bit_cast<float>(static_cast<uint32_t>(in[i].x) << 16);
}

HYPERION_VECTORISED void narrow(const float* in, c10::BFloat16* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<uint32_t>(in[i]);
    const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    out[i].x = static_cast<uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : rounded);
  }
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
  for (int64_t h = 0; h < heads; ++h, x += 2 * half, y += 2 * half)
    for (int64_t j = 0; j < half; ++j) {
      const float a = x[2 * j], b = x[2 * j + 1], s = sign * sin[j];
      y[2 * j] = a * cos[j] - b * s;
      y[2 * j + 1] = a * s + b * cos[j];
    }
}

HYPERION_VECTORISED void rotate_halves(const float* x, const float* cos, const float* sin, float sign,
                                       float* y, int64_t heads, int64_t half) {
  for (int64_t h = 0; h < heads; ++h, x += 2 * half, y += 2 * half)
    for (int64_t j = 0; j < half; ++j) {
      const float a = x[j], b = x[half + j], s = sign * sin[j];
      y[j] = a * cos[j] - b * s;
      y[half + j] = b * cos[j] + a * s;
    }
}

HYPERION_VECTORISED void silu(const float* gate, float* a, int64_t n) {
  for (int64_t i = 0; i < n; ++i) a[i] = gate[i] / (1.0F + exp_fp32(-gate[i]));
}

HYPERION_VECTORISED void multiply(const float* a, const float* b, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] * b[i];
}

HYPERION_VECTORISED void silu_backward(const float* gate, const float* g, float* dgate, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float sigmoid = 1.0F / (1.0F + exp_fp32(-gate[i]));
    dgate[i] = g[i] * sigmoid * (1.0F + gate[i] * (1.0F - sigmoid));
  }
}

HYPERION_VECTORISED float log_sum_exp(const float* x, int64_t n) {
  float most = 0, sum = 0;
  add_up_exp(x, n, most, sum);
  return most + std::log(sum);
}

HYPERION_VECTORISED void max_and_sum_exp(const float* x, int64_t n, float& most, float& sum) {
  add_up_exp(x, n, most, sum);
}

HYPERION_VECTORISED void softmax(float* x, float lse, float factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = factor * exp_fp32(x[i] - lse);
}

float* scratch(int slot, int64_t n) {
  thread_local std::array<std::vector<float>, 6> buffers;
  auto& buffer = buffers.at(static_cast<size_t>(slot));
  if (buffer.size() < static_cast<size_t>(n)) buffer.resize(static_cast<size_t>(n));
  return buffer.data();
}

}  // namespace hyperion::kernels::rows
