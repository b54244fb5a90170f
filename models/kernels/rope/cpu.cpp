#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/record_function.h>

#include "base/device/parallel_for.h"
#include "models/kernels/common/rows.h"
#include "models/kernels/fused.h"
#include "models/kernels/operators.h"
#include "models/kernels/rope/rope.h"

namespace hyperion::kernels {
namespace {

// [..., heads, head_dim] as rows [tokens, heads * head_dim], each contiguous; a copy where they do not lie at
// equal distances.
at::Tensor token_rows(const at::Tensor& x) {
  const at::Tensor rows = x.flatten(-2).flatten(0, -2);
  return rows.stride(1) == 1 || rows.size(1) == 1 ? rows : rows.contiguous();
}

// Writes rope of x into y, whose tokens lie at equal distances.
void fused_rope(const at::Tensor& x, const at::Tensor& y, const at::Tensor& cos, const at::Tensor& sin,
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
      float *row = rows::scratch(0, width), *turned = rows::scratch(1, width);
      for (int64_t token = begin; token < end; ++token) {  // token = sequence * seq + position
        const int64_t angle = token % positions * half;
        const int64_t sequence = token / seq, position = token % seq, each = seq / parts;
        const int64_t in_parts = (position / each * batch + sequence) * each + position % each;
        rows::widen(in + (inverse ? token : in_parts) * in_stride, row, width);
        rotate(row, cos.const_data_ptr<float>() + angle, sin.const_data_ptr<float>() + angle, sign, turned,
               heads, half);
        rows::narrow(turned, out + (inverse ? in_parts : token) * out_stride, width);
      }
    });
  });
}

bool takes_fused_rope(const at::Tensor& x, const at::Tensor& cos) {
  return has_fused(x) && cos.scalar_type() == at::kFloat;
}

// The shape of what fused_rope() writes.
std::vector<int64_t> turned_shape(const at::Tensor& x, bool inverse, int64_t parts) {
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  if (parts == 1) return shape;
  const int64_t heads = x.size(-2), head_dim = x.size(-1);
  if (inverse) return {parts, x.size(0), x.size(1) / parts, heads, head_dim};
  return {x.size(1), x.size(2) * parts, heads, head_dim};
}

// Tokens that lie part by part of the sequences, as whole sequences, and back.
at::Tensor joined(const at::Tensor& x, int64_t parts) {
  return parts == 1 ? x : x.transpose(0, 1).flatten(1, 2);
}
at::Tensor divided(const at::Tensor& x, int64_t parts) {
  return parts == 1 ? x : x.unflatten(1, {parts, x.size(1) / parts}).transpose(0, 1);
}

bool takes_fused_rope_on_gpu(const Heads& x, const at::Tensor& cos) {
  return has_fused_on_gpu("RoPE", x.q,
                          cos.scalar_type() != at::kFloat ? "angles that are not fp32"
                          : x.k.scalar_type() != x.q.scalar_type() || x.v.scalar_type() != x.q.scalar_type()
                              ? "heads of different dtypes"
                              : "");
}

}  // namespace

at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, models::RopeStyle style,
                bool inverse, int64_t parts) {
  if (!takes_fused_rope(x, cos)) return plain::rope(x, cos, sin, style, inverse, parts);
  at::Tensor y = at::empty(turned_shape(x, inverse, parts), x.options());
  fused_rope(x, y, cos.contiguous(), sin.contiguous(), style, inverse, parts);
  return y;
}

Heads rope_heads(const Heads& x, const at::Tensor& cos, const at::Tensor& sin, models::RopeStyle style,
                 int64_t parts) {
  // Values that are a tensor of their own stay where they are; a view would keep the product of all three.
  const bool passes = parts == 1 && x.v.is_contiguous() &&
                      x.v.numel() * x.v.element_size() == static_cast<int64_t>(x.v.storage().nbytes());
  if (takes_fused_rope_on_gpu(x, cos)) {
    Heads turned = operators::rope_heads({x.q, x.k, passes ? at::Tensor() : x.v}, cos, sin, style, parts);
    if (passes) turned.v = x.v;
    return turned;
  }
  RECORD_FUNCTION("hyperion::rope_heads", std::vector<c10::IValue>({x.q, x.k}));
  at::Tensor v = joined(x.v, parts);
  if (!passes && v.is_alias_of(x.v)) v = v.clone(at::MemoryFormat::Contiguous);
  return {rope(x.q, cos, sin, style, /*inverse=*/false, parts),
          rope(x.k, cos, sin, style, /*inverse=*/false, parts), v};
}

Heads rope_heads_backward(const Heads& grads, const at::Tensor& cos, const at::Tensor& sin,
                          models::RopeStyle style, int64_t parts) {
  if (takes_fused_rope_on_gpu(grads, cos))
    return operators::rope_heads_backward(grads, cos, sin, style, parts);
  RECORD_FUNCTION("hyperion::rope_heads_backward", std::vector<c10::IValue>({grads.q, grads.k}));
  if (!takes_fused_rope(grads.q, cos)) return plain::rope_heads_backward(grads, cos, sin, style, parts);
  // Side by side, as the gradient of one product.
  std::vector<int64_t> shape = turned_shape(grads.q, /*inverse=*/true, parts);
  const int64_t heads = shape[shape.size() - 2], kv_heads = grads.k.size(-2);
  shape[shape.size() - 2] += 2 * kv_heads;
  const at::Tensor all = at::empty(shape, grads.q.options());
  Heads back = {all.narrow(-2, 0, heads), all.narrow(-2, heads, kv_heads),
                all.narrow(-2, heads + kv_heads, kv_heads)};
  const at::Tensor whole_cos = cos.contiguous(), whole_sin = sin.contiguous();
  fused_rope(grads.q, back.q, whole_cos, whole_sin, style, /*inverse=*/true, parts);
  fused_rope(grads.k, back.k, whole_cos, whole_sin, style, /*inverse=*/true, parts);
  back.v.copy_(divided(grads.v, parts));
  return back;
}

Heads plain::rope_heads(const Heads& x, const at::Tensor& cos, const at::Tensor& sin, models::RopeStyle style,
                        int64_t parts) {
  return {plain::rope(x.q, cos, sin, style, /*inverse=*/false, parts),
          plain::rope(x.k, cos, sin, style, /*inverse=*/false, parts), joined(x.v, parts)};
}

Heads plain::rope_heads_backward(const Heads& grads, const at::Tensor& cos, const at::Tensor& sin,
                                 models::RopeStyle style, int64_t parts) {
  return {plain::rope(grads.q, cos, sin, style, /*inverse=*/true, parts),
          plain::rope(grads.k, cos, sin, style, /*inverse=*/true, parts), divided(grads.v, parts)};
}

at::Tensor plain::rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                       models::RopeStyle style, bool inverse, int64_t parts) {
  if (parts > 1 && inverse) return divided(plain::rope(x, cos, sin, style, inverse), parts).contiguous();
  if (parts > 1) return plain::rope(joined(x, parts), cos, sin, style, inverse);
  const at::Tensor c =
      cos.unsqueeze(-2).to(opmath_dtype(x));  // [seq, 1, half] broadcasts over batch and heads
  const at::Tensor s = (inverse ? sin.neg() : sin).unsqueeze(-2).to(opmath_dtype(x));
  if (style == models::RopeStyle::kInterleaved) {
    const at::Tensor pairs = x.to(opmath_dtype(x)).unflatten(-1, {x.size(-1) / 2, 2});
    const at::Tensor a = pairs.select(-1, 0), b = pairs.select(-1, 1);
    return at::stack({a * c - b * s, a * s + b * c}, -1).flatten(-2).to(x.scalar_type());
  }
  const auto halves = x.to(opmath_dtype(x)).chunk(2, -1);
  return at::cat({halves[0] * c - halves[1] * s, halves[1] * c + halves[0] * s}, -1).to(x.scalar_type());
}

}  // namespace hyperion::kernels
