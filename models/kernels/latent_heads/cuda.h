// Calls latent_heads/cuda.cuh with tensors.
#pragma once

#include <algorithm>

#include <ATen/ops/empty.h>

#include "models/kernels/common/tensors.h"
#include "models/kernels/latent_heads/latent_heads.h"
#include "models/kernels/latent_heads/task.h"

namespace hyperion::kernels::cuda {

// Returns x, or a copy if its offset or its strides are odd: kernels read pairs of elements.
inline Tensor with_pairs(const Tensor& x) {
  bool even = x.stride(-1) == 1 && x.storage_offset() % 2 == 0;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) even = even && (x.size(d) == 1 || x.stride(d) % 2 == 0);
  return even ? x : x.contiguous();
}

inline HeadsLayout latent_layout(const Tensor& x) {
  return {.data = x.data_ptr(), .sequence = x.stride(0), .position = x.stride(1), .head = x.stride(2)};
}

// Makes a task with the extents of queries `q` [batch, seq, heads, width].
template <typename Task>
Task latent_task(const Tensor& q, const Tensor& cos, const Tensor& sin, double factor, int64_t values) {
  Task task;
  const int64_t rotated = 2 * cos.size(-1), tokens = q.size(0) * q.size(1);
  task.heads = static_cast<int>(q.size(2));
  task.plain = static_cast<int>(q.size(3) - rotated);
  task.rotated = static_cast<int>(rotated);
  task.values = static_cast<int>(values);
  task.sequences = q.size(0);
  task.length = q.size(1);
  task.cos = cos.const_data_ptr<float>();
  task.sin = sin.const_data_ptr<float>();
  task.positions = cos.numel() / cos.size(-1);
  task.factor = static_cast<float>(factor);
  require_numbers(sin, cos.numel(), "latent_heads: sin");
  TORCH_CHECK(task.positions > 0 && tokens % task.positions == 0, "latent_heads: heads of ", q.sizes(),
              " and angles of ", cos.sizes());
  return task;
}

template <typename Launch>
Heads latent_heads(const Launch& launch, const Tensor& given_q, const Tensor& given_kv,
                   const Tensor& given_shared, const Tensor& given_cos, const Tensor& given_sin,
                   double factor, int64_t value_width) {
  require_alike(given_kv, given_q, "latent_heads");
  require_alike(given_shared, given_q, "latent_heads");
  const Tensor q = with_pairs(given_q), kv = with_pairs(given_kv),
               shared = with_pairs(given_shared.unsqueeze(2)), cos = given_cos.contiguous(),
               sin = given_sin.contiguous();
  const int64_t tokens = q.size(0) * q.size(1), rotated = shared.size(-1), plain = q.size(-1) - rotated,
                values = kv.size(-1) - plain;
  TORCH_CHECK(rotated == 2 * cos.size(-1), "latent_heads: ", rotated, " rotated elements and angles of ",
              cos.sizes());
  require_numbers(kv, tokens * q.size(2) * (plain + values), "latent_heads: kv");
  require_numbers(shared, tokens * rotated, "latent_heads: shared");
  const Heads out = {at::empty(q.sizes(), q.options()), at::empty(q.sizes(), q.options()),
                     at::empty({q.size(0), q.size(1), q.size(2), value_width}, q.options())};
  auto task = latent_task<LatentHeadsTask>(q, cos, sin, factor, values);
  task.value_width = static_cast<int>(value_width);
  task.q = latent_layout(q);
  task.kv = latent_layout(kv);
  task.shared = latent_layout(shared);
  task.queries = latent_layout(out.q);
  task.keys = latent_layout(out.k);
  task.v = latent_layout(out.v);
  launch(task, element_of(q, "latent_heads"));
  return out;
}

template <typename Launch>
LatentGradients latent_heads_backward(const Launch& launch, const Heads& grads, const Tensor& given_cos,
                                      const Tensor& given_sin, double factor, int64_t values) {
  require_alike(grads.k, grads.q, "latent_heads_backward");
  require_alike(grads.v, grads.q, "latent_heads_backward");
  const Tensor q = with_pairs(grads.q), k = with_pairs(grads.k), v = with_pairs(grads.v),
               cos = given_cos.contiguous(), sin = given_sin.contiguous();
  require_numbers(k, q.numel(), "latent_heads_backward: keys");
  require_numbers(v, q.numel() / q.size(-1) * std::max(values, v.size(-1)), "latent_heads_backward: values");
  auto task = latent_task<LatentHeadsBackwardTask>(q, cos, sin, factor, values);
  const int64_t batch = q.size(0), seq = q.size(1);
  LatentGradients out = {at::empty(q.sizes(), q.options()),
                         at::empty({batch, seq, q.size(2), task.plain + values}, q.options()),
                         at::empty({batch, seq, 1, task.rotated}, q.options())};
  task.q = latent_layout(out.q);
  task.kv = latent_layout(out.kv);
  task.shared = latent_layout(out.shared);
  task.queries = latent_layout(q);
  task.keys = latent_layout(k);
  task.v = latent_layout(v);
  launch(task, element_of(q, "latent_heads_backward"));
  out.shared = out.shared.squeeze(2);
  return out;
}

}  // namespace hyperion::kernels::cuda
