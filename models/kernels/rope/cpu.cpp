#include <vector>

#include <ATen/ops/empty.h>

#include "base/device/parallel_for.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/common/rows.h"
#include "models/kernels/common/scratch.h"
#include "models/kernels/rope/rope.h"

namespace hyperion::kernels::cpu {
namespace {

// [..., heads, head_dim] as rows [tokens, heads * head_dim], each contiguous; a copy where they do not lie at
// equal distances.
at::Tensor token_rows(const at::Tensor& x) {
  const at::Tensor rows = x.flatten(-2).flatten(0, -2);
  return rows.stride(1) == 1 || rows.size(1) == 1 ? rows : rows.contiguous();
}

// Writes rope of x into y, whose tokens lie at equal distances.
void rope_into(const at::Tensor& x, const at::Tensor& y, const at::Tensor& cos, const at::Tensor& sin,
               models::RopeStyle style, bool inverse, int64_t parts) {
  const int64_t head_dim = x.size(-1), half = head_dim / 2, heads = x.size(-2), width = heads * head_dim;
  const int64_t tokens = width == 0 ? 0 : x.numel() / width;
  if (tokens == 0) return;
  const int64_t positions = cos.numel() / half;  // seq, or batch * seq
  const bool by_parts = parts > 1 && !inverse;   // of x
  const int64_t batch = x.size(by_parts ? 1 : 0), seq = by_parts ? x.size(2) * parts : x.size(1);
  const at::Tensor from = token_rows(x), to = token_rows(y);
  const float sign = inverse ? -1.0F : 1.0F;
  const auto rotate =
      style == models::RopeStyle::kInterleaved ? rows::rotate_interleaved : rows::rotate_halves;
  with_element_type(x, [&]<typename T>(T) {
    const T* in = from.const_data_ptr<T>();
    T* out = to.mutable_data_ptr<T>();
    const int64_t in_stride = from.stride(0), out_stride = to.stride(0);
    parallel_for(0, tokens, 16, [&](int64_t begin, int64_t end) {
      float *row = thread_scratch(width), *rotated = thread_scratch(width, 1);
      for (int64_t token = begin; token < end; ++token) {  // token = sequence * seq + position
        const int64_t angle = token % positions * half;
        const int64_t sequence = token / seq, position = token % seq, each = seq / parts;
        const int64_t in_parts = (position / each * batch + sequence) * each + position % each;
        rows::widen(in + (inverse ? token : in_parts) * in_stride, row, width);
        rotate(row, cos.const_data_ptr<float>() + angle, sin.const_data_ptr<float>() + angle, sign, rotated,
               heads, half);
        rows::narrow(rotated, out + (inverse ? in_parts : token) * out_stride, width);
      }
    });
  });
}

// The shape of what rope_into() writes.
std::vector<int64_t> rotated_shape(const at::Tensor& x, bool inverse, int64_t parts) {
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  if (parts == 1) return shape;
  const int64_t heads = x.size(-2), head_dim = x.size(-1);
  if (inverse) return {parts, x.size(0), x.size(1) / parts, heads, head_dim};
  return {x.size(1), x.size(2) * parts, heads, head_dim};
}

}  // namespace

at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, models::RopeStyle style,
                bool inverse, int64_t parts) {
  at::Tensor y = at::empty(rotated_shape(x, inverse, parts), x.options());
  rope_into(x, y, cos.contiguous(), sin.contiguous(), style, inverse, parts);
  return y;
}

Heads rope_heads(const Heads& x, const at::Tensor& cos, const at::Tensor& sin, models::RopeStyle style,
                 int64_t parts) {
  return {rope(x.q, cos, sin, style, /*inverse=*/false, parts),
          rope(x.k, cos, sin, style, /*inverse=*/false, parts), copy_of_values(x.v, parts)};
}

Heads rope_heads_backward(const Heads& grads, const at::Tensor& cos, const at::Tensor& sin,
                          models::RopeStyle style, int64_t parts) {
  // The gradients lie side by side, as the gradient of one product.
  std::vector<int64_t> shape = rotated_shape(grads.q, /*inverse=*/true, parts);
  const int64_t heads = shape[shape.size() - 2], kv_heads = grads.k.size(-2);
  shape[shape.size() - 2] += 2 * kv_heads;
  const at::Tensor all = at::empty(shape, grads.q.options());
  Heads back = {all.narrow(-2, 0, heads), all.narrow(-2, heads, kv_heads),
                all.narrow(-2, heads + kv_heads, kv_heads)};
  const at::Tensor dense_cos = cos.contiguous(), dense_sin = sin.contiguous();
  rope_into(grads.q, back.q, dense_cos, dense_sin, style, /*inverse=*/true, parts);
  rope_into(grads.k, back.k, dense_cos, dense_sin, style, /*inverse=*/true, parts);
  back.v.copy_(in_parts(grads.v, parts));
  return back;
}

}  // namespace hyperion::kernels::cpu
