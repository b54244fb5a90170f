#include "models/kernels/rope.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>

#include "models/kernels/cpu/rows.h"
#include "models/kernels/fused.h"

namespace hyperion::kernels {
namespace {

at::Tensor fused_rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                      models::RopeStyle style, bool inverse) {
  const int64_t heads = x.size(2), half = x.size(3) / 2, width = heads * 2 * half;
  const int64_t positions = cos.numel() / half;  // seq, or batch * seq
  at::Tensor y = at::empty_like(x);
  const float sign = inverse ? -1.0F : 1.0F;
  const auto rotate =
      style == models::RopeStyle::kInterleaved ? rows::rotate_interleaved : rows::rotate_halves;
  with_element_type(x, [&]<typename T>(T) {
    const T* in = x.const_data_ptr<T>();
    T* out = y.mutable_data_ptr<T>();
    at::parallel_for(0, x.size(0) * x.size(1), 16, [&](int64_t begin, int64_t end) {
      float *row = rows::scratch(0, width), *turned = rows::scratch(1, width);
      for (int64_t token = begin; token < end; ++token) {
        const int64_t angle = token % positions * half;
        rows::widen(in + token * width, row, width);
        rotate(row, cos.const_data_ptr<float>() + angle, sin.const_data_ptr<float>() + angle, sign, turned,
               heads, half);
        rows::narrow(turned, out + token * width, width);
      }
    });
  });
  return y;
}

}  // namespace

at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, models::RopeStyle style,
                bool inverse) {
  if (has_fused(x) && cos.scalar_type() == at::kFloat)
    return fused_rope(x.contiguous(), cos.contiguous(), sin.contiguous(), style, inverse);
  return plain::rope(x, cos, sin, style, inverse);
}

at::Tensor plain::rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                       models::RopeStyle style, bool inverse) {
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
