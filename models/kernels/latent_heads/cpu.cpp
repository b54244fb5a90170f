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

constexpr int64_t kLeastTokens = 8;  // a thread takes no fewer

// Heads [batch, seq, heads, width] by token; a copy where a head's elements are apart.
template <typename T>
struct HeadsOf {
  explicit HeadsOf(const Tensor& given)
      : tensor(given.stride(-1) == 1 ? given : given.contiguous()),
        data(tensor.data_ptr<T>()),
        seq(tensor.size(1)),
        stride(tensor.stride(2)) {}
  // Returns the first head of a token; the others lie `stride` elements apart.
  T* of(int64_t token) const {
    return data + token / seq * tensor.stride(0) + token % seq * tensor.stride(1);
  }
  Tensor tensor;
  T* data;
  int64_t seq, stride;
};

// Widths of the parts of a head, and the angles.
struct Parts {
  Parts(const Tensor& given_cos, const Tensor& given_sin, int64_t width)
      : cos(given_cos.contiguous()),
        sin(given_sin.contiguous()),
        rotated(2 * cos.size(-1)),
        plain(width - rotated),
        positions(cos.numel() / cos.size(-1)) {}

  int64_t angle(int64_t token) const { return token % positions * (rotated / 2); }
  // Rotates the elements x [rotated] by the angles of a token; sign -1: back.
  void rotate(const float* x, int64_t angle, float sign, float* y) const {
    rows::rotate_interleaved(x, cos.const_data_ptr<float>() + angle, sin.const_data_ptr<float>() + angle,
                             sign, y, /*heads=*/1, rotated / 2);
  }
  // Rotates a query, or its gradient back, and multiplies it by the factor. scratch: [2, rotated].
  template <typename T>
  void move_query(const T* from, T* to, int64_t angle, float sign, float factor, float* scratch) const {
    float* part = scratch + rotated;
    rows::narrow_scaled(from, factor, to, plain);
    rows::widen(from + plain, scratch, rotated);
    rotate(scratch, angle, sign, part);
    rows::narrow_scaled(part, factor, to + plain, rotated);
  }

  Tensor cos, sin;
  int64_t rotated, plain, positions;
};

}  // namespace

Heads latent_heads(const Tensor& q, const Tensor& kv, const Tensor& shared, const Tensor& cos,
                   const Tensor& sin, double factor, int64_t value_width) {
  const int64_t tokens = q.size(0) * q.size(1), heads = q.size(2), width = q.size(3);
  const Parts parts(cos, sin, width);
  const int64_t plain = parts.plain, rotated = parts.rotated, values = kv.size(3) - plain;
  const auto scale = static_cast<float>(factor);
  const Heads out = {at::empty(q.sizes(), q.options()), at::empty(q.sizes(), q.options()),
                     at::empty({q.size(0), q.size(1), heads, value_width}, q.options())};
  with_element_type(q, [&]<typename T>(T) {
    const HeadsOf<T> from_q(q), from_kv(kv), from_shared(shared.unsqueeze(2)), to_q(out.q), to_k(out.k),
        to_v(out.v);
    parallel_for(0, tokens, kLeastTokens, [&](int64_t begin, int64_t end) {
      float *scratch = thread_scratch(2 * rotated), *of_keys = thread_scratch(rotated, 1);
      for (int64_t token = begin; token < end; ++token) {
        const int64_t angle = parts.angle(token);
        rows::widen(from_shared.of(token), scratch, rotated);
        parts.rotate(scratch, angle, 1, of_keys);
        const T *query = from_q.of(token), *source = from_kv.of(token);
        T *moved = to_q.of(token), *key = to_k.of(token), *value = to_v.of(token);
        for (int64_t head = 0; head < heads; ++head) {
          std::copy_n(source, plain, key);
          rows::narrow(of_keys, key + plain, rotated);
          std::copy_n(source + plain, values, value);
          std::fill_n(value + values, value_width - values, T(0));
          parts.move_query<T>(query, moved, angle, 1, scale, scratch);
          query += from_q.stride, source += from_kv.stride;
          moved += to_q.stride, key += to_k.stride, value += to_v.stride;
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
  const auto scale = static_cast<float>(factor);
  LatentGradients out = {at::empty(q.sizes(), q.options()),
                         at::empty({q.size(0), q.size(1), heads, plain + values}, q.options()),
                         at::empty({q.size(0), q.size(1), rotated}, q.options())};
  with_element_type(q, [&]<typename T>(T) {
    const HeadsOf<T> of_queries(q), of_keys(grads.k), of_values(grads.v), to_q(out.q), to_kv(out.kv),
        to_shared(out.shared.unsqueeze(2));
    parallel_for(0, tokens, kLeastTokens, [&](int64_t begin, int64_t end) {
      float *scratch = thread_scratch(2 * rotated), *sum = thread_scratch(rotated, 1);
      for (int64_t token = begin; token < end; ++token) {
        const int64_t angle = parts.angle(token);
        std::fill_n(sum, rotated, 0.0F);
        const T *query = of_queries.of(token), *key = of_keys.of(token), *value = of_values.of(token);
        T *moved = to_q.of(token), *to = to_kv.of(token);
        for (int64_t head = 0; head < heads; ++head) {
          std::copy_n(key, plain, to);
          std::copy_n(value, values, to + plain);
          rows::add_scaled(key + plain, 1.0F, sum, rotated);
          parts.move_query<T>(query, moved, angle, -1, scale, scratch);
          query += of_queries.stride, key += of_keys.stride, value += of_values.stride;
          moved += to_q.stride, to += to_kv.stride;
        }
        parts.rotate(sum, angle, -1, scratch);
        rows::narrow(scratch, to_shared.of(token), rotated);
      }
    });
  });
  return out;
}

}  // namespace hyperion::kernels::cpu
