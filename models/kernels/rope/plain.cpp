#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include "models/kernels/common/dtype.h"
#include "models/kernels/rope/rope.h"

namespace hyperion::kernels {
namespace {

// Tokens that lie part by part of the sequences, as whole sequences.
at::Tensor whole_sequences(const at::Tensor& x, int64_t parts) {
  return parts == 1 ? x : x.transpose(0, 1).flatten(1, 2);
}

}  // namespace

at::Tensor in_parts(const at::Tensor& x, int64_t parts) {
  return parts == 1 ? x : x.unflatten(1, {parts, x.size(1) / parts}).transpose(0, 1);
}

at::Tensor copy_of_values(const at::Tensor& v, int64_t parts) {
  if (!v.defined()) return v;
  const at::Tensor values = whole_sequences(v, parts);
  return values.is_alias_of(v) ? values.clone(at::MemoryFormat::Contiguous) : values;
}

namespace plain {

Heads rope_heads(const Heads& x, const at::Tensor& cos, const at::Tensor& sin, models::RopeStyle style,
                 int64_t parts) {
  return {rope(x.q, cos, sin, style, /*inverse=*/false, parts),
          rope(x.k, cos, sin, style, /*inverse=*/false, parts), copy_of_values(x.v, parts)};
}

Heads rope_heads_backward(const Heads& grads, const at::Tensor& cos, const at::Tensor& sin,
                          models::RopeStyle style, int64_t parts) {
  return {rope(grads.q, cos, sin, style, /*inverse=*/true, parts),
          rope(grads.k, cos, sin, style, /*inverse=*/true, parts), in_parts(grads.v, parts)};
}

at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, models::RopeStyle style,
                bool inverse, int64_t parts) {
  if (parts > 1 && inverse) return in_parts(rope(x, cos, sin, style, inverse), parts).contiguous();
  if (parts > 1) return rope(whole_sequences(x, parts), cos, sin, style, inverse);
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

}  // namespace plain
}  // namespace hyperion::kernels
