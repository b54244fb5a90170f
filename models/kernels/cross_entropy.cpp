#include "models/kernels/cross_entropy.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "base/error.h"
#include "models/kernels/cpu/rows.h"
#include "models/kernels/fused.h"

namespace hyperion::kernels {
namespace {

at::Tensor fused_cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor* scale) {
  const int64_t count = logits.size(0), vocab = logits.size(1);
  const at::Tensor losses = at::zeros({count}, logits.options().dtype(at::kDouble));
  const auto* label = labels.const_data_ptr<int64_t>();
  const float factor = scale == nullptr ? 0.0F : scale->item<float>();
  with_element_type(logits, [&]<typename T>(T) {
    T* data = logits.mutable_data_ptr<T>();
    at::parallel_for(0, count, 4, [&](int64_t begin, int64_t end) {
      float* row = rows::scratch(0, vocab);
      for (int64_t r = begin; r < end; ++r) {
        if (label[r] == kIgnoredLabel) {
          if (scale != nullptr) std::fill(data + r * vocab, data + (r + 1) * vocab, T(0));
          continue;
        }
        if (label[r] < 0 || label[r] >= vocab)
          throw_bug("label {} is outside the vocabulary of {}", label[r], vocab);
        rows::widen(data + r * vocab, row, vocab);
        const float lse = rows::log_sum_exp(row, vocab);
        losses.mutable_data_ptr<double>()[r] = static_cast<double>(lse) - static_cast<double>(row[label[r]]);
        if (scale == nullptr) continue;
        rows::softmax(row, lse, factor, vocab);
        row[label[r]] -= factor;
        rows::narrow(row, data + r * vocab, vocab);
      }
    });
  });
  return losses.sum().to(at::kFloat);
}

}  // namespace

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor* scale) {
  if (has_fused(logits) && logits.is_contiguous() && labels.is_contiguous())
    return fused_cross_entropy(logits, labels, scale);
  return plain::cross_entropy(logits, labels, scale);
}

// A few rows at a time in fp32: what a CPU's caches hold, what keeps a GPU's launches few.
at::Tensor plain::cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor* scale) {
  const int64_t wide_bytes = logits.is_cpu() ? int64_t{8} << 20 : int64_t{256} << 20;
  const int64_t step = std::max<int64_t>(1, wide_bytes / (logits.size(1) * 4));
  at::Tensor total = at::zeros({}, logits.options().dtype(opmath_dtype(logits)));
  for (int64_t first = 0; first < logits.size(0); first += step) {
    const int64_t count = std::min(step, logits.size(0) - first);
    at::Tensor part = logits.narrow(0, first, count);
    const at::Tensor label = labels.narrow(0, first, count).unsqueeze(1);
    const at::Tensor valid = label.ne(kIgnoredLabel);
    const at::Tensor target = label.clamp_min(0);
    at::Tensor log_p = at::_log_softmax(part.to(opmath_dtype(logits)), 1, /*half_to_float=*/false);
    total.sub_((log_p.gather(1, target) * valid).sum());
    if (scale == nullptr) continue;
    at::Tensor grad = log_p.exp_();
    grad.scatter_add_(1, target, at::full_like(target, -1, grad.options()));
    part.copy_(grad.mul_(valid * *scale));
  }
  return total;
}

}  // namespace hyperion::kernels
