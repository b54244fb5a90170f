#include "models/kernels/rope.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>

#include "models/kernels/cpu/rows.h"
#include "models/kernels/fused.h"

namespace hyperion::kernels {
namespace {

at::Tensor fused_rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                      models::RopeStyle style, bool inverse, int64_t parts) {
  const int64_t head_dim = x.size(-1), half = head_dim / 2, heads = x.size(-2), width = heads * head_dim;
  const int64_t tokens = width == 0 ? 0 : x.numel() / width;
  const int64_t positions = cos.numel() / half;  // seq, or batch * seq
  const bool by_parts = parts > 1 && !inverse;   // of x
  const int64_t batch = x.size(by_parts ? 1 : 0), seq = by_parts ? x.size(2) * parts : x.size(1);
  at::Tensor y = parts == 1 ? at::empty_like(x)
                 : inverse  ? at::empty({parts, batch, seq / parts, heads, head_dim}, x.options())
                            : at::empty({batch, seq, heads, head_dim}, x.options());
  const float sign = inverse ? -1.0F : 1.0F;
  const auto rotate =
      style == models::RopeStyle::kInterleaved ? rows::rotate_interleaved : rows::rotate_halves;
  with_element_type(x, [&]<typename T>(T) {
    const T* in = x.const_data_ptr<T>();
    T* out = y.mutable_data_ptr<T>();
    at::parallel_for(0, tokens, 16, [&](int64_t begin, int64_t end) {
      float *row = rows::scratch(0, width), *turned = rows::scratch(1, width);
      for (int64_t token = begin; token < end; ++token) {  // token = sequence * seq + position
        const int64_t angle = token % positions * half;
        const int64_t sequence = token / seq, position = token % seq, each = seq / parts;
        const int64_t in_parts = (position / each * batch + sequence) * each + position % each;
        rows::widen(in + (inverse ? token : in_parts) * width, row, width);
        rotate(row, cos.const_data_ptr<float>() + angle, sin.const_data_ptr<float>() + angle, sign, turned,
               heads, half);
        rows::narrow(turned, out + (inverse ? in_parts : token) * width, width);
      }
    });
  });
  return y;
}

}  // namespace

at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, models::RopeStyle style,
                bool inverse, int64_t parts) {
  if (has_fused(x) && cos.scalar_type() == at::kFloat)
    return fused_rope(x.contiguous(), cos.contiguous(), sin.contiguous(), style, inverse, parts);
  return plain::rope(x, cos, sin, style, inverse, parts);
}

at::Tensor plain::rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                       models::RopeStyle style, bool inverse, int64_t parts) {
  if (parts > 1 && inverse)
    return plain::rope(x, cos, sin, style, inverse)
        .unflatten(1, {parts, x.size(1) / parts})
        .transpose(0, 1)
        .contiguous();
  if (parts > 1) return plain::rope(x.transpose(0, 1).flatten(1, 2), cos, sin, style, inverse);
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
