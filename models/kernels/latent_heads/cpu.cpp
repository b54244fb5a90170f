#include <algorithm>

#include <ATen/ops/empty.h>

#include "base/device/parallel_for.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/common/rows.h"
#include "models/kernels/common/scratch.h"
#include "models/kernels/latent_heads/latent_heads.h"

namespace hyperion::kernels::cpu {
namespace {

using at::Tensor;

constexpr int64_t kTokensOfThread = 8;  // at least

// Heads [batch, seq, heads, width] by token; a copy where a head's elements are apart.
template <typename T>
struct HeadsOf {
  explicit HeadsOf(const Tensor& given)
      : tensor(given.stride(-1) == 1 ? given : given.contiguous()), data(tensor.data_ptr<T>()) {}
  T* at(int64_t token, int64_t head) const {
    const int64_t seq = tensor.size(1);
    return data + token / seq * tensor.stride(0) + token % seq * tensor.stride(1) + head * tensor.stride(2);
  }
  Tensor tensor;
  T* data;
};

void multiply(float* row, double factor, int64_t n) {
  if (factor == 1) return;
  for (int64_t i = 0; i < n; ++i) row[i] *= static_cast<float>(factor);
}

// Widths of the parts of a head, and the angles.
struct Parts {
  Parts(const Tensor& given_cos, const Tensor& given_sin, int64_t width)
      : cos(given_cos.contiguous()),
        sin(given_sin.contiguous()),
        rotated(2 * cos.size(-1)),
        plain(width - rotated),
        positions(cos.numel() / cos.size(-1)) {}

  // Rotated elements x [rotated] of a token; sign -1: back.
  void rotate(const float* x, int64_t token, float sign, float* y) const {
    const int64_t angle = token % positions * (rotated / 2);
    rows::rotate_interleaved(x, cos.const_data_ptr<float>() + angle, sin.const_data_ptr<float>() + angle,
                             sign, y, /*heads=*/1, rotated / 2);
  }
  // A query, or its gradient: rotated, or back, and times the factor.
  template <typename T>
  void move_query(const T* from, T* to, int64_t token, float sign, double factor, float* wide) const {
    const int64_t width = plain + rotated;
    float* part = wide + width;  // [rotated]
    rows::widen(from, wide, width);
    rotate(wide + plain, token, sign, part);
    std::copy_n(part, rotated, wide + plain);
    multiply(wide, factor, width);
    rows::narrow(wide, to, width);
  }

  Tensor cos, sin;
  int64_t rotated, plain, positions;
};

}  // namespace

Heads latent_heads(const Tensor& q, const Tensor& kv, const Tensor& shared, const Tensor& cos,
                   const Tensor& sin, double factor) {
  const int64_t tokens = q.size(0) * q.size(1), heads = q.size(2), width = q.size(3);
  const Parts parts(cos, sin, width);
  const int64_t plain = parts.plain, rotated = parts.rotated, values = kv.size(3) - plain;
  const Heads out = {at::empty(q.sizes(), q.options()), at::empty(q.sizes(), q.options()),
                     at::empty(q.sizes(), q.options())};
  with_element_type(q, [&]<typename T>(T) {
    const HeadsOf<T> from_q(q), from_kv(kv), from_shared(shared.unsqueeze(2)), to_q(out.q), to_k(out.k),
        to_v(out.v);
    parallel_for(0, tokens, kTokensOfThread, [&](int64_t begin, int64_t end) {
      float *wide = thread_scratch(width + rotated), *of_keys = thread_scratch(rotated, 1);
      for (int64_t token = begin; token < end; ++token) {
        rows::widen(from_shared.at(token, 0), wide, rotated);
        parts.rotate(wide, token, 1, of_keys);
        for (int64_t head = 0; head < heads; ++head) {
          T *key = to_k.at(token, head), *value = to_v.at(token, head);
          const T* source = from_kv.at(token, head);
          std::copy_n(source, plain, key);
          rows::narrow(of_keys, key + plain, rotated);
          std::copy_n(source + plain, values, value);
          std::fill_n(value + values, width - values, T(0));
          parts.move_query<T>(from_q.at(token, head), to_q.at(token, head), token, 1, factor, wide);
        }
      }
    });
  });
  return out;
}

LatentGradients latent_heads_backward(const Heads& grads, const Tensor& cos, const Tensor& sin, double factor,
                                      int64_t values) {
  const Tensor& q = grads.q;
  const int64_t tokens = q.size(0) * q.size(1), heads = q.size(2), width = q.size(3);
  const Parts parts(cos, sin, width);
  const int64_t plain = parts.plain, rotated = parts.rotated;
  LatentGradients out = {at::empty(q.sizes(), q.options()),
                         at::empty({q.size(0), q.size(1), heads, plain + values}, q.options()),
                         at::empty({q.size(0), q.size(1), rotated}, q.options())};
  with_element_type(q, [&]<typename T>(T) {
    const HeadsOf<T> of_queries(q), of_keys(grads.k), of_values(grads.v), to_q(out.q), to_kv(out.kv),
        to_shared(out.shared.unsqueeze(2));
    parallel_for(0, tokens, kTokensOfThread, [&](int64_t begin, int64_t end) {
      float *wide = thread_scratch(width + rotated), *sum = thread_scratch(rotated, 1),
            *rotated_back = thread_scratch(rotated, 2);
      for (int64_t token = begin; token < end; ++token) {
        std::fill_n(sum, rotated, 0.0F);
        for (int64_t head = 0; head < heads; ++head) {
          const T* key = of_keys.at(token, head);
          T* to = to_kv.at(token, head);
          std::copy_n(key, plain, to);
          std::copy_n(of_values.at(token, head), values, to + plain);
          rows::widen(key + plain, wide, rotated);
          for (int64_t i = 0; i < rotated; ++i) sum[i] += wide[i];
          parts.move_query<T>(of_queries.at(token, head), to_q.at(token, head), token, -1, factor, wide);
        }
        parts.rotate(sum, token, -1, rotated_back);
        rows::narrow(rotated_back, to_shared.at(token, 0), rotated);
      }
    });
  });
  return out;
}

}  // namespace hyperion::kernels::cpu
