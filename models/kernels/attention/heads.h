// Heads for operations that know one head of keys for each head of queries, or heads of one width.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/constant_pad_nd.h>

namespace hyperion::kernels {

// [batch, kv_heads, seq, d] -> [batch, heads, seq, d], each head repeated in place.
inline at::Tensor repeat_heads(const at::Tensor& t, int64_t heads) {
  const int64_t times = heads / t.size(1);
  return times == 1 ? t : t.repeat_interleave(times, 1);
}

inline at::Tensor sum_heads(const at::Tensor& grad, int64_t kv_heads) {
  if (grad.size(1) == kv_heads) return grad;
  return grad.unflatten(1, {kv_heads, grad.size(1) / kv_heads}).sum(2);
}

// Returns t [..., d] with zeros at the end of each head, [..., width]; t itself where d is the width.
inline at::Tensor pad_heads(const at::Tensor& t, int64_t width) {
  return t.size(-1) == width ? t : at::constant_pad_nd(t, {0, width - t.size(-1)});
}

}  // namespace hyperion::kernels
