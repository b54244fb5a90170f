// The last unit: final norm, head and cross-entropy, chunk by chunk.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "models/kernels/cross_entropy.h"
#include "models/kernels/fused.h"
#include "models/ops.h"
#include "models/transformer.h"

namespace hyperion::models {
namespace {

void accumulate_grad(const at::Tensor& weight, const at::Tensor& grad) {
  at::Tensor& slot = weight.mutable_grad();
  if (slot.defined())
    slot.add_(grad);
  else
    slot = grad;
}

}  // namespace

LossHead::LossHead(const ModelArgs& args, ParameterPtr norm, ParameterPtr output, int64_t chunk_bytes)
    : norm_eps_(args.norm_eps),
      chunk_bytes_(chunk_bytes),
      norm_(std::move(norm)),
      output_(std::move(output)) {}

int64_t LossHead::rows_per_chunk(const at::Tensor& x) const {
  if (output_.couples_rows()) return x.numel() / x.size(-1);
  const int64_t row_bytes = output_.weight()->rows() * static_cast<int64_t>(x.element_size());
  const int64_t automatic = x.is_cpu() ? int64_t{64} << 20 : int64_t{1} << 30;
  return std::max<int64_t>(1, (chunk_bytes_ > 0 ? chunk_bytes_ : automatic) / row_bytes);
}

at::Tensor LossHead::loss_sum(const at::Tensor& x, const at::Tensor& labels) const {
  at::NoGradGuard no_grad;
  const at::Tensor h = ops::rms_norm(x, norm_->weight, norm_eps_).flatten(0, 1);
  const at::Tensor flat_labels = labels.flatten();
  at::Tensor total = at::zeros({}, h.options().dtype(kernels::opmath_dtype(h)));
  const int64_t step = rows_per_chunk(x);
  for (int64_t first = 0; first < h.size(0); first += step) {
    const int64_t count = std::min(step, h.size(0) - first);
    total.add_(kernels::cross_entropy(output_.output(h.narrow(0, first, count)),
                                      flat_labels.narrow(0, first, count), nullptr));
  }
  return total;
}

LossHead::LossAndGrad LossHead::loss_and_grad(const at::Tensor& x, const at::Tensor& labels,
                                              const at::Tensor& scale) const {
  const at::Tensor leaf = x.detach().requires_grad_();
  const at::Tensor normed = [&] {
    at::AutoGradMode grad_mode(true);
    return ops::rms_norm(leaf, norm_->weight, norm_eps_);
  }();
  at::NoGradGuard no_grad;
  const at::Tensor& weight = output_.weight()->weight;
  const at::Tensor h = normed.detach().flatten(0, 1);
  const at::Tensor flat_labels = labels.flatten();
  const int64_t step = rows_per_chunk(x);
  at::Tensor loss = at::zeros({}, h.options().dtype(kernels::opmath_dtype(h)));
  at::Tensor grad_h = at::empty_like(h);
  at::Tensor grad_weight;  // in fp32 when several chunks add up, so that bf16 rounds once
  for (int64_t first = 0; first < h.size(0); first += step) {
    const int64_t count = std::min(step, h.size(0) - first);
    const at::Tensor rows = h.narrow(0, first, count);
    at::Tensor logits = output_.output(rows);
    loss.add_(kernels::cross_entropy(logits, flat_labels.narrow(0, first, count), &scale));
    auto [grad_rows, part] = output_.gradients(logits, rows);
    grad_h.narrow(0, first, count).copy_(grad_rows);
    if (count == h.size(0))
      grad_weight = part;
    else if (!grad_weight.defined())
      grad_weight = part.to(kernels::opmath_dtype(h));
    else
      grad_weight.add_(part);
  }
  accumulate_grad(weight, grad_weight.to(weight.scalar_type()));
  torch::autograd::backward({normed}, {grad_h.view(x.sizes())});
  return {loss, leaf.grad()};
}

at::Tensor LossHead::logits(const at::Tensor& x) const {
  at::NoGradGuard no_grad;
  return output_.forward(ops::rms_norm(x, norm_->weight, norm_eps_));
}

}  // namespace hyperion::models
