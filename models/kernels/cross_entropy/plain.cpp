#include <algorithm>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "base/error.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/cross_entropy/cross_entropy.h"

namespace hyperion::kernels {

void require_label(int64_t label, int64_t vocab) {
  if (label < 0 || label >= vocab) throw_bug("label {} is outside the vocabulary of {}", label, vocab);
}

at::Tensor sum_of_losses(const at::Tensor& losses) {
  if (!losses.is_cpu()) return losses.sum();
  const at::Tensor rows = losses.contiguous().to(at::kDouble);
  double sum = 0;
  for (int64_t row = 0; row < rows.numel(); ++row) sum += rows.const_data_ptr<double>()[row];
  return at::scalar_tensor(sum, losses.options());
}

namespace plain {
namespace {

// Works on a few rows at a time in fp32: a CPU's caches hold them, and a GPU's launches stay few.
template <typename Work>
void for_few_rows(const at::Tensor& logits, const Work& work) {
  const int64_t wide_bytes = logits.is_cpu() ? int64_t{8} << 20 : int64_t{256} << 20;
  const int64_t step = std::max<int64_t>(1, wide_bytes / std::max<int64_t>(1, logits.size(1) * 4));
  for (int64_t first = 0; first < logits.size(0); first += step)
    work(first, std::min(step, logits.size(0) - first));
}

// LabelColumns are the columns of labels in a part of the vocabulary.
struct LabelColumns {
  at::Tensor column;  // int64 [rows, 1], 0 for labels that are not in the part
  at::Tensor inside;  // bool [rows, 1]
};
LabelColumns columns_of(const at::Tensor& labels, int64_t columns, const VocabPart& part) {
  const at::Tensor column = (labels - part.first).unsqueeze(1);
  const at::Tensor inside = column.ge(0).logical_and_(column.lt(columns));
  return {column * inside, inside};
}

}  // namespace

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor* scale,
                         double z_loss) {
  at::Tensor total = at::zeros({}, logits.options().dtype(opmath_dtype(logits)));
  at::Tensor squares = total;  // of log-sum-exp; a tensor of its own with z-loss
  if (z_loss != 0) squares = at::zeros_like(total);
  for_few_rows(logits, [&](int64_t first, int64_t count) {
    at::Tensor part = logits.narrow(0, first, count);
    const at::Tensor label = labels.narrow(0, first, count).unsqueeze(1);
    const at::Tensor valid = label.ne(kIgnoredLabel);
    const at::Tensor target = label.clamp_min(0);
    at::Tensor log_p = at::_log_softmax(part.to(opmath_dtype(logits)), 1, /*half_to_float=*/false);
    total.sub_((log_p.gather(1, target) * valid).sum());
    at::Tensor log_sum_exp;
    if (z_loss != 0) {
      log_sum_exp = part.to(opmath_dtype(logits)).logsumexp(1, /*keepdim=*/true);
      squares.add_((log_sum_exp.square() * valid).sum());
    }
    if (scale == nullptr) return;
    at::Tensor grad = log_p.exp_();
    if (z_loss != 0) grad.mul_(1 + 2 * z_loss * log_sum_exp);
    grad.scatter_add_(1, target, at::full_like(target, -1, grad.options()));
    part.copy_(grad.mul_(valid * *scale));
  });
  return z_loss == 0 ? total : at::stack({total, squares});
}

at::Tensor vocab_statistics(const at::Tensor& logits, const at::Tensor& labels, const VocabPart& part) {
  const auto options = logits.options().dtype(opmath_dtype(logits));
  if (labels.is_cpu()) {
    const at::Tensor counted = labels.masked_select(labels.ne(kIgnoredLabel));
    for (int64_t i = 0; i < counted.numel(); ++i)
      require_label(counted.const_data_ptr<int64_t>()[i], part.vocab);
  }
  at::Tensor statistics = at::zeros({logits.size(0), 3}, options);
  if (logits.size(1) == 0) {
    statistics.select(1, 0).fill_(-std::numeric_limits<double>::infinity());
    return statistics;
  }
  for_few_rows(logits, [&](int64_t first, int64_t count) {
    const at::Tensor wide = logits.narrow(0, first, count).to(opmath_dtype(logits));
    const auto [column, inside] = columns_of(labels.narrow(0, first, count), logits.size(1), part);
    const at::Tensor maximum = wide.amax(1, /*keepdim=*/true);
    const at::Tensor picked = at::where(inside, wide.gather(1, column), at::zeros({}, options));
    statistics.narrow(0, first, count)
        .copy_(at::cat({maximum, (wide - maximum).exp_().sum(1, true), picked}, 1));
  });
  return statistics;
}

void vocab_gradient(const at::Tensor& logits, const at::Tensor& labels, const VocabPart& part,
                    const at::Tensor& log_sum_exp, const at::Tensor& scale, double z_loss) {
  if (logits.size(1) == 0) return;
  for_few_rows(logits, [&](int64_t first, int64_t count) {
    at::Tensor chunk = logits.narrow(0, first, count);
    const at::Tensor label = labels.narrow(0, first, count);
    const auto [column, inside] = columns_of(label, logits.size(1), part);
    const at::Tensor lse = log_sum_exp.narrow(0, first, count).unsqueeze(1);
    at::Tensor grad = (chunk.to(opmath_dtype(logits)) - lse).exp_();
    if (z_loss != 0) grad.mul_(1 + 2 * z_loss * lse);
    grad.scatter_add_(1, column, inside.to(grad.scalar_type()).neg_());
    chunk.copy_(grad.mul_(label.ne(kIgnoredLabel).unsqueeze(1) * scale));
  });
}

}  // namespace plain
}  // namespace hyperion::kernels
