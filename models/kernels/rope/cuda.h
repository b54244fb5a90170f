// Calls rope/cuda.cuh with tensors.
#pragma once

#include <vector>

#include <ATen/ops/empty.h>

#include "models/kernels/common/tensors.h"
#include "models/kernels/rope/rope.h"
#include "models/kernels/rope/task.h"

namespace hyperion::kernels::cuda {

// Returns the layout of x [batch, seq, heads, head_dim] or [parts, batch, seq / parts, heads, head_dim].
inline HeadsLayout layout_of(const Tensor& x, int64_t each) {
  HeadsLayout layout{.data = x.data_ptr(), .head = x.stride(-2)};
  layout.position = x.stride(-3);
  layout.sequence = x.stride(-4);
  layout.part = x.dim() == 5 ? x.stride(0) : each * layout.position;
  return layout;
}

inline Tensor with_whole_heads(const Tensor& x) {
  return x.stride(-1) == 1 ? x : x.contiguous();
}

// Fills in the extents of full sequences.
struct Extents {
  int64_t batch, length, heads, kv_heads, head_dim;
};

template <typename Launch>
void run_rope(const Launch& launch, const Extents& extents, const Tensor& cos, const Tensor& sin,
              models::RopeStyle style, int64_t parts, RopeTask task, Element element) {
  const Tensor angles_cos = cos.contiguous(), angles_sin = sin.contiguous();
  task.heads = static_cast<int>(extents.heads);
  task.kv_heads = static_cast<int>(extents.kv_heads);
  task.half = static_cast<int>(extents.head_dim / 2);
  task.sequences = extents.batch;
  task.length = extents.length;
  task.each = extents.length / parts;
  task.cos = angles_cos.const_data_ptr<float>();
  task.sin = angles_sin.const_data_ptr<float>();
  task.positions = task.half == 0 ? 1 : cos.numel() / task.half;
  task.interleaved = style == models::RopeStyle::kInterleaved;
  TORCH_CHECK(
      extents.head_dim % 2 == 0 && task.positions > 0 && extents.batch * extents.length % task.positions == 0,
      "rope_heads: heads of ", extents.head_dim, " and angles of ", cos.sizes());
  require_numbers(sin, cos.numel(), "rope_heads: sin");
  launch(task, element);
}

template <typename Launch>
Heads rope_heads(const Launch& launch, const Heads& x, const Tensor& cos, const Tensor& sin,
                 models::RopeStyle style, int64_t parts) {
  require_alike(x.k, x.q, "rope_heads");
  const bool has_v = x.v.defined();
  const Tensor q = with_whole_heads(x.q), k = with_whole_heads(x.k),
               v = has_v ? with_whole_heads(x.v) : Tensor();
  const Extents extents{q.size(-4), q.size(-3) * (q.dim() == 5 ? parts : 1), q.size(-2), k.size(-2),
                        q.size(-1)};
  const int64_t tokens = extents.batch * extents.length;
  require_numbers(k, tokens * extents.kv_heads * extents.head_dim, "rope_heads: k");
  if (has_v) require_numbers(v, k.numel(), "rope_heads: v");
  const auto result = [&](int64_t heads) {
    return at::empty({extents.batch, extents.length, heads, extents.head_dim}, q.options());
  };
  const Tensor q_out = result(extents.heads), k_out = result(extents.kv_heads),
               v_out = has_v ? result(extents.kv_heads) : Tensor();
  const int64_t each = extents.length / parts;
  RopeTask task{.q = layout_of(q, each),
                .k = layout_of(k, each),
                .v = {},
                .q_out = layout_of(q_out, each),
                .k_out = layout_of(k_out, each),
                .v_out = {}};
  if (has_v) {
    require_alike(v, q, "rope_heads");
    task.v = layout_of(v, each);
    task.v_out = layout_of(v_out, each);
  }
  run_rope(launch, extents, cos, sin, style, parts, task, element_of(q, "rope_heads"));
  return {q_out, k_out, v_out};
}

// Returns three views of one tensor [.., (heads + 2 kv_heads) * head_dim].
template <typename Launch>
Heads rope_heads_backward(const Launch& launch, const Heads& grads, const Tensor& cos, const Tensor& sin,
                          models::RopeStyle style, int64_t parts) {
  require_alike(grads.k, grads.q, "rope_heads_backward");
  require_alike(grads.v, grads.q, "rope_heads_backward");
  const Tensor q = with_whole_heads(grads.q), k = with_whole_heads(grads.k), v = with_whole_heads(grads.v);
  const Extents extents{q.size(0), q.size(1), q.size(2), k.size(2), q.size(3)};
  const int64_t each = extents.length / parts, all = extents.heads + 2 * extents.kv_heads;
  require_numbers(k, extents.batch * extents.length * extents.kv_heads * extents.head_dim,
                  "rope_heads_backward: k");
  require_numbers(v, k.numel(), "rope_heads_backward: v");
  std::vector<int64_t> shape = {extents.batch, each, all, extents.head_dim};
  if (parts > 1) shape.insert(shape.begin(), parts);
  const Tensor packed = at::empty(shape, q.options());
  const Tensor q_out = packed.narrow(-2, 0, extents.heads),
               k_out = packed.narrow(-2, extents.heads, extents.kv_heads),
               v_out = packed.narrow(-2, extents.heads + extents.kv_heads, extents.kv_heads);
  const RopeTask task{.q = layout_of(q, each),
                      .k = layout_of(k, each),
                      .v = layout_of(v, each),
                      .q_out = layout_of(q_out, each),
                      .k_out = layout_of(k_out, each),
                      .v_out = layout_of(v_out, each),
                      .inverse = true};
  run_rope(launch, extents, cos, sin, style, parts, task, element_of(q, "rope_heads_backward"));
  return {q_out, k_out, v_out};
}

}  // namespace hyperion::kernels::cuda
