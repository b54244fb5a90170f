// The fused kernels on tensors: checks, memory of the results, and the tasks that
// models/kernels/common/launch.h describes. `launch(task, element)` runs a task; in tests on CPU threads.
#pragma once

#include <optional>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>

#include "models/kernels/common/launch.h"

namespace hyperion::kernels::on_tensors {

using at::Tensor;

inline Element element_of(const Tensor& x, const char* what) {
  TORCH_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16, what, ": ", x.scalar_type(),
              ", expected fp32 or bf16");
  return x.scalar_type() == at::kFloat ? Element::kFloat : Element::kBFloat16;
}

inline void require_alike(const Tensor& x, const Tensor& like, const char* what) {
  TORCH_CHECK(x.scalar_type() == like.scalar_type() && x.device() == like.device(), what, ": ",
              x.scalar_type(), " on ", x.device(), " beside ", like.scalar_type(), " on ", like.device());
}

inline void require_numbers(const Tensor& x, int64_t many, const char* what) {
  TORCH_CHECK(x.numel() == many, what, ": ", x.sizes(), ", expected ", many, " numbers");
}

// --- RoPE --------------------------------------------------------------------------------------------------

// x [batch, seq, heads, head_dim], or [parts, batch, seq / parts, heads, head_dim].
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

// Extents of whole sequences.
struct Extents {
  int64_t batch, length, heads, kv_heads, head_dim;
};

template <typename Launch>
void run_rope(const Launch& launch, const Extents& extents, const Tensor& cos, const Tensor& sin,
              bool interleaved, int64_t parts, RopeTask task, Element element) {
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
  task.interleaved = interleaved;
  TORCH_CHECK(
      extents.head_dim % 2 == 0 && task.positions > 0 && extents.batch * extents.length % task.positions == 0,
      "rope_heads: heads of ", extents.head_dim, " and angles of ", cos.sizes());
  require_numbers(sin, cos.numel(), "rope_heads: sin");
  launch(task, element);
}

template <typename Launch>
std::tuple<Tensor, Tensor, Tensor> rope_heads(const Launch& launch, const Tensor& given_q,
                                              const Tensor& given_k, const std::optional<Tensor>& given_v,
                                              const Tensor& cos, const Tensor& sin, bool interleaved,
                                              int64_t parts) {
  require_alike(given_k, given_q, "rope_heads");
  const Tensor q = with_whole_heads(given_q), k = with_whole_heads(given_k),
               v = given_v ? with_whole_heads(*given_v) : Tensor();
  const Extents extents{q.size(-4), q.size(-3) * (q.dim() == 5 ? parts : 1), q.size(-2), k.size(-2),
                        q.size(-1)};
  const int64_t tokens = extents.batch * extents.length;
  require_numbers(k, tokens * extents.kv_heads * extents.head_dim, "rope_heads: k");
  if (given_v) require_numbers(v, k.numel(), "rope_heads: v");
  const auto result = [&](int64_t heads) {
    return at::empty({extents.batch, extents.length, heads, extents.head_dim}, q.options());
  };
  const Tensor q_out = result(extents.heads), k_out = result(extents.kv_heads),
               v_out = given_v ? result(extents.kv_heads) : Tensor();
  const int64_t each = extents.length / parts;
  RopeTask task{.q = layout_of(q, each),
                .k = layout_of(k, each),
                .v = {},
                .q_out = layout_of(q_out, each),
                .k_out = layout_of(k_out, each),
                .v_out = {}};
  if (given_v) {
    require_alike(v, q, "rope_heads");
    task.v = layout_of(v, each);
    task.v_out = layout_of(v_out, each);
  }
  run_rope(launch, extents, cos, sin, interleaved, parts, task, element_of(q, "rope_heads"));
  return {q_out, k_out, v_out};
}

// The three results are views of one tensor [.., (heads + 2 kv_heads) * head_dim].
template <typename Launch>
std::tuple<Tensor, Tensor, Tensor> rope_heads_backward(const Launch& launch, const Tensor& given_q,
                                                       const Tensor& given_k, const Tensor& given_v,
                                                       const Tensor& cos, const Tensor& sin, bool interleaved,
                                                       int64_t parts) {
  require_alike(given_k, given_q, "rope_heads_backward");
  require_alike(given_v, given_q, "rope_heads_backward");
  const Tensor q = with_whole_heads(given_q), k = with_whole_heads(given_k), v = with_whole_heads(given_v);
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
  run_rope(launch, extents, cos, sin, interleaved, parts, task, element_of(q, "rope_heads_backward"));
  return {q_out, k_out, v_out};
}

// --- SwiGLU ------------------------------------------------------------------------------------------------

// x as rows with a distance between them that is the same everywhere.
struct Rows {
  explicit Rows(const Tensor& given) : x(given) {
    bool even = x.stride(-1) == 1;
    for (int64_t d = 0; d + 2 < x.dim(); ++d)
      even = even && (x.size(d) == 1 || x.stride(d) == x.stride(d + 1) * x.size(d + 1));
    if (!even) x = x.contiguous();
    stride = x.dim() > 1 ? x.stride(-2) : x.size(-1);
    count = x.size(-1) == 0 ? 0 : x.numel() / x.size(-1);
  }
  Tensor x;
  int64_t stride = 0, count = 0;
};

template <typename Launch>
Tensor swiglu(const Launch& launch, const Tensor& given_gate, const Tensor& given_up) {
  require_alike(given_up, given_gate, "swiglu");
  TORCH_CHECK(given_gate.sizes() == given_up.sizes(), "swiglu: gate ", given_gate.sizes(), " and up ",
              given_up.sizes());
  const Rows gate(given_gate), up(given_up);
  Tensor output = at::empty(given_gate.sizes(), given_gate.options());
  const SwigluTask task{.gate = gate.x.const_data_ptr(),
                        .up = up.x.const_data_ptr(),
                        .gate_stride = gate.stride,
                        .up_stride = up.stride,
                        .rows = gate.count,
                        .n = output.size(-1),
                        .output = output.mutable_data_ptr()};
  launch(task, element_of(output, "swiglu"));
  return output;
}

// The halves of one tensor.
template <typename Launch>
std::tuple<Tensor, Tensor> swiglu_backward(const Launch& launch, const Tensor& given_grad,
                                           const Tensor& given_gate, const Tensor& given_up) {
  require_alike(given_up, given_gate, "swiglu_backward");
  require_alike(given_grad, given_gate, "swiglu_backward");
  require_numbers(given_up, given_gate.numel(), "swiglu_backward: up");
  require_numbers(given_grad, given_gate.numel(), "swiglu_backward: grad");
  const Rows grad(given_grad), gate(given_gate), up(given_up);
  std::vector<int64_t> shape = given_gate.sizes().vec();
  const int64_t n = shape.back();
  shape.back() = 2 * n;
  Tensor packed = at::empty(shape, given_gate.options());
  const SwigluTask task{.gate = gate.x.const_data_ptr(),
                        .up = up.x.const_data_ptr(),
                        .gate_stride = gate.stride,
                        .up_stride = up.stride,
                        .rows = gate.count,
                        .n = n,
                        .grad = grad.x.const_data_ptr(),
                        .grad_stride = grad.stride,
                        .packed = packed.mutable_data_ptr()};
  launch(task, element_of(packed, "swiglu_backward"));
  return {packed.narrow(-1, 0, n), packed.narrow(-1, n, n)};
}

// --- RMSNorm -----------------------------------------------------------------------------------------------

template <typename Launch>
std::tuple<Tensor, Tensor, Tensor> add_rms_norm(const Launch& launch, const Tensor& given_x,
                                                const Tensor& given_residual, const Tensor& given_weight,
                                                double eps) {
  require_alike(given_weight, given_x, "add_rms_norm");
  require_alike(given_residual, given_x, "add_rms_norm");
  require_numbers(given_x, given_residual.numel(), "add_rms_norm: x");
  const Tensor x = given_x.contiguous(), residual = given_residual.contiguous(),
               weight = given_weight.contiguous();
  const Tensor sum = at::empty_like(residual), output = at::empty_like(residual);
  const int64_t n = output.size(-1), rows = n == 0 ? 0 : output.numel() / n;
  require_numbers(weight, n, "add_rms_norm: weight");
  const Tensor rstd = at::empty({rows}, output.options().dtype(at::kFloat));
  const AddRmsNormTask task{.x = x.const_data_ptr(),
                            .residual = residual.const_data_ptr(),
                            .weight = weight.const_data_ptr(),
                            .rows = rows,
                            .n = n,
                            .eps = static_cast<float>(eps),
                            .sum = sum.mutable_data_ptr(),
                            .output = output.mutable_data_ptr(),
                            .rstd = rstd.mutable_data_ptr<float>()};
  launch(task, element_of(x, "add_rms_norm"));
  return {sum, output, rstd};
}

template <typename Launch>
std::tuple<Tensor, Tensor> add_rms_norm_backward(const Launch& launch, const Tensor& given_grad,
                                                 const Tensor& given_grad_sum, const Tensor& given_sum,
                                                 const Tensor& given_weight, const Tensor& given_rstd,
                                                 at::TensorList given_more = {}) {
  for (const Tensor* other : {&given_grad, &given_grad_sum, &given_weight})
    require_alike(*other, given_sum, "add_rms_norm_backward");
  const Tensor grad = given_grad.contiguous(), grad_sum = given_grad_sum.contiguous(),
               sum = given_sum.contiguous(), weight = given_weight.contiguous(),
               rstd = given_rstd.contiguous();
  const int64_t n = sum.size(-1), rows = n == 0 ? 0 : sum.numel() / n;
  require_numbers(grad, sum.numel(), "add_rms_norm_backward: grad");
  require_numbers(grad_sum, sum.numel(), "add_rms_norm_backward: grad_sum");
  require_numbers(weight, n, "add_rms_norm_backward: weight");
  require_numbers(rstd, rows, "add_rms_norm_backward: rstd");
  TORCH_CHECK(given_more.size() <= size_t{kMoreTerms}, "add_rms_norm_backward: ", given_more.size(),
              " further terms of the gradient, expected ", kMoreTerms, " at most");
  std::vector<Tensor> more;
  for (const Tensor& term : given_more) {
    require_alike(term, sum, "add_rms_norm_backward");
    require_numbers(term, sum.numel(), "add_rms_norm_backward: a further term");
    more.push_back(term.contiguous());
  }
  Tensor grad_x = at::empty_like(sum), grad_weight = at::empty_like(weight);
  const int64_t blocks = rms_norm_blocks(rows);
  Tensor partial = at::empty({blocks, n}, sum.options().dtype(at::kFloat));
  AddRmsNormBackwardTask task{.grad = grad.const_data_ptr(),
                              .grad_sum = grad_sum.const_data_ptr(),
                              .sum = sum.const_data_ptr(),
                              .weight = weight.const_data_ptr(),
                              .rstd = rstd.const_data_ptr<float>(),
                              .rows = rows,
                              .n = n,
                              .blocks = blocks,
                              .grad_x = grad_x.mutable_data_ptr(),
                              .partial = partial.mutable_data_ptr<float>(),
                              .grad_weight = grad_weight.mutable_data_ptr()};
  for (size_t i = 0; i < more.size(); ++i) task.more[i] = more[i].const_data_ptr();
  launch(task, element_of(sum, "add_rms_norm_backward"));
  return {grad_x, grad_weight};
}

// --- cross-entropy -----------------------------------------------------------------------------------------

inline CrossEntropyTask rows_of(const Tensor& logits, const Tensor& labels, const char* what) {
  TORCH_CHECK(logits.dim() == 2 && logits.is_contiguous() && labels.is_contiguous() &&
                  labels.scalar_type() == at::kLong && labels.numel() == logits.size(0) &&
                  labels.device() == logits.device(),
              what, ": logits ", logits.sizes(), ", labels ", labels.sizes());
  return {.logits = logits.data_ptr(),
          .labels = labels.const_data_ptr<int64_t>(),
          .rows = logits.size(0),
          .columns = logits.size(1),
          .first = 0,
          .vocabulary = logits.size(1)};
}

inline const float* fp32_of(const Tensor& x, int64_t many, const Tensor& beside, const char* what) {
  TORCH_CHECK(x.scalar_type() == at::kFloat && x.device() == beside.device() && x.numel() == many &&
                  x.is_contiguous(),
              what, ": ", x.numel(), " numbers in ", x.scalar_type(), " on ", x.device(), ", expected ", many,
              " in fp32 on ", beside.device());
  return x.const_data_ptr<float>();
}

template <typename Launch>
Tensor cross_entropy(const Launch& launch, Tensor& logits, const Tensor& labels,
                     const std::optional<Tensor>& scale) {
  CrossEntropyTask task = rows_of(logits, labels, "cross_entropy_");
  Tensor losses = at::empty({task.rows}, logits.options().dtype(at::kFloat));
  task.losses = losses.mutable_data_ptr<float>();
  if (scale) task.scale = fp32_of(*scale, 1, logits, "cross_entropy_: scale");
  launch(task, element_of(logits, "cross_entropy_"));
  return losses.sum();
}

template <typename Launch>
Tensor vocab_statistics(const Launch& launch, const Tensor& logits, const Tensor& labels, int64_t first,
                        int64_t whole) {
  CrossEntropyTask task = rows_of(logits, labels, "vocab_statistics");
  task.first = first;
  task.vocabulary = whole;
  Tensor statistics = at::empty({task.rows, 3}, logits.options().dtype(at::kFloat));
  task.statistics = statistics.mutable_data_ptr<float>();
  launch(task, element_of(logits, "vocab_statistics"));
  return statistics;
}

template <typename Launch>
Tensor& vocab_gradient(const Launch& launch, Tensor& logits, const Tensor& labels, int64_t first,
                       int64_t whole, const Tensor& log_sum_exp, const Tensor& scale) {
  CrossEntropyTask task = rows_of(logits, labels, "vocab_gradient_");
  task.first = first;
  task.vocabulary = whole;
  task.log_sum_exp = fp32_of(log_sum_exp, task.rows, logits, "vocab_gradient_: log_sum_exp");
  task.scale = fp32_of(scale, 1, logits, "vocab_gradient_: scale");
  launch(task, element_of(logits, "vocab_gradient_"));
  return logits;
}

}  // namespace hyperion::kernels::on_tensors
