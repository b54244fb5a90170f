#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>

#include "base/device/parallel_for.h"
#include "base/error.h"
#include "models/kernels/common/rows.h"
#include "models/kernels/cross_entropy/cross_entropy.h"
#include "models/kernels/fused.h"
#include "models/kernels/operators.h"

namespace hyperion::kernels {
namespace {

void require_label(int64_t label, int64_t vocab) {
  if (label < 0 || label >= vocab) throw_bug("label {} is outside the vocabulary of {}", label, vocab);
}

at::Tensor fused_cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor* scale) {
  RECORD_FUNCTION("hyperion::cross_entropy_", std::vector<c10::IValue>({logits, labels}));
  const int64_t count = logits.size(0), vocab = logits.size(1);
  const at::Tensor losses = at::zeros({count}, logits.options().dtype(at::kDouble));
  const auto* label = labels.const_data_ptr<int64_t>();
  const float factor = scale == nullptr ? 0.0F : scale->item<float>();
  with_element_type(logits, [&]<typename T>(T) {
    T* data = logits.mutable_data_ptr<T>();
    parallel_for(0, count, 4, [&](int64_t begin, int64_t end) {
      float* row = rows::scratch(0, vocab);
      for (int64_t r = begin; r < end; ++r) {
        if (label[r] == kIgnoredLabel) {
          if (scale != nullptr) std::fill(data + r * vocab, data + (r + 1) * vocab, T(0));
          continue;
        }
        require_label(label[r], vocab);
        rows::widen(data + r * vocab, row, vocab);
        const float logit = row[label[r]];
        float most = 0, sum = 0;
        rows::exponentials(row, vocab, most, sum);
        losses.mutable_data_ptr<double>()[r] =
            static_cast<double>(most + std::log(sum)) - static_cast<double>(logit);
        if (scale == nullptr) continue;
        row[label[r]] -= sum;  // the softmax, times the sum, less 1
        rows::narrow_scaled(row, factor / sum, data + r * vocab, vocab);
      }
    });
  });
  return sum_of_losses(losses).to(at::kFloat);
}

at::Tensor fused_vocab_statistics(const at::Tensor& logits, const at::Tensor& labels, const VocabPart& part) {
  RECORD_FUNCTION("hyperion::vocab_statistics", std::vector<c10::IValue>({logits, labels}));
  const int64_t count = logits.size(0), columns = logits.size(1);
  at::Tensor statistics = at::empty({count, 3}, logits.options().dtype(at::kFloat));
  const auto* label = labels.const_data_ptr<int64_t>();
  float* out = statistics.mutable_data_ptr<float>();
  with_element_type(logits, [&]<typename T>(T) {
    const T* data = logits.const_data_ptr<T>();
    parallel_for(0, count, 4, [&](int64_t begin, int64_t end) {
      float* row = rows::scratch(0, columns);
      for (int64_t r = begin; r < end; ++r) {
        if (label[r] != kIgnoredLabel) require_label(label[r], part.whole);
        rows::widen(data + r * columns, row, columns);
        const int64_t column = label[r] - part.first;
        out[3 * r + 2] = column >= 0 && column < columns ? row[column] : 0.0F;
        rows::exponentials(row, columns, out[3 * r], out[3 * r + 1]);
      }
    });
  });
  return statistics;
}

void fused_vocab_gradient(const at::Tensor& logits, const at::Tensor& labels, const VocabPart& part,
                          const at::Tensor& log_sum_exp, const at::Tensor& scale) {
  RECORD_FUNCTION("hyperion::vocab_gradient_", std::vector<c10::IValue>({logits, labels}));
  const int64_t count = logits.size(0), columns = logits.size(1);
  const auto* label = labels.const_data_ptr<int64_t>();
  const auto* lse = log_sum_exp.const_data_ptr<float>();
  const auto factor = scale.item<float>();
  with_element_type(logits, [&]<typename T>(T) {
    T* data = logits.mutable_data_ptr<T>();
    parallel_for(0, count, 4, [&](int64_t begin, int64_t end) {
      float* row = rows::scratch(0, columns);
      for (int64_t r = begin; r < end; ++r) {
        if (label[r] == kIgnoredLabel) {
          std::fill(data + r * columns, data + (r + 1) * columns, T(0));
          continue;
        }
        rows::widen(data + r * columns, row, columns);
        rows::softmax(row, lse[r], factor, columns);
        const int64_t column = label[r] - part.first;
        if (column >= 0 && column < columns) row[column] -= factor;
        rows::narrow(row, data + r * columns, columns);
      }
    });
  });
}

bool takes_fused(const at::Tensor& logits, const at::Tensor& labels) {
  return has_fused(logits) && logits.is_contiguous() && labels.is_contiguous();
}

bool takes_fused_loss_on_gpu(const at::Tensor& logits, const at::Tensor& labels) {
  return has_fused_on_gpu("cross-entropy", logits,
                          logits.is_contiguous() && labels.is_contiguous() ? "" : "rows with gaps");
}

// A few rows at a time in fp32: what a CPU's caches hold, what keeps a GPU's launches few.
template <typename Work>
void for_few_rows(const at::Tensor& logits, const Work& work) {
  const int64_t wide_bytes = logits.is_cpu() ? int64_t{8} << 20 : int64_t{256} << 20;
  const int64_t step = std::max<int64_t>(1, wide_bytes / std::max<int64_t>(1, logits.size(1) * 4));
  for (int64_t first = 0; first < logits.size(0); first += step)
    work(first, std::min(step, logits.size(0) - first));
}

// Where the labels of some rows are in a part of the vocabulary.
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

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor* scale) {
  if (takes_fused(logits, labels)) return fused_cross_entropy(logits, labels, scale);
  return takes_fused_loss_on_gpu(logits, labels) ? operators::cross_entropy(logits, labels, scale)
                                                 : plain::cross_entropy(logits, labels, scale);
}

at::Tensor sum_of_losses(const at::Tensor& losses) {
  if (!losses.is_cpu()) return losses.sum();
  const at::Tensor rows = losses.contiguous().to(at::kDouble);
  double sum = 0;
  for (int64_t row = 0; row < rows.numel(); ++row) sum += rows.const_data_ptr<double>()[row];
  return at::scalar_tensor(sum, losses.options());
}

at::Tensor vocab_statistics(const at::Tensor& logits, const at::Tensor& labels, const VocabPart& part) {
  if (takes_fused(logits, labels)) return fused_vocab_statistics(logits, labels, part);
  return takes_fused_loss_on_gpu(logits, labels) ? operators::vocab_statistics(logits, labels, part)
                                                 : plain::vocab_statistics(logits, labels, part);
}

void vocab_gradient(const at::Tensor& logits, const at::Tensor& labels, const VocabPart& part,
                    const at::Tensor& log_sum_exp, const at::Tensor& scale) {
  if (takes_fused(logits, labels)) return fused_vocab_gradient(logits, labels, part, log_sum_exp, scale);
  return takes_fused_loss_on_gpu(logits, labels)
             ? operators::vocab_gradient(logits, labels, part, log_sum_exp, scale)
             : plain::vocab_gradient(logits, labels, part, log_sum_exp, scale);
}

at::Tensor plain::cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor* scale) {
  at::Tensor total = at::zeros({}, logits.options().dtype(opmath_dtype(logits)));
  for_few_rows(logits, [&](int64_t first, int64_t count) {
    at::Tensor part = logits.narrow(0, first, count);
    const at::Tensor label = labels.narrow(0, first, count).unsqueeze(1);
    const at::Tensor valid = label.ne(kIgnoredLabel);
    const at::Tensor target = label.clamp_min(0);
    at::Tensor log_p = at::_log_softmax(part.to(opmath_dtype(logits)), 1, /*half_to_float=*/false);
    total.sub_((log_p.gather(1, target) * valid).sum());
    if (scale == nullptr) return;
    at::Tensor grad = log_p.exp_();
    grad.scatter_add_(1, target, at::full_like(target, -1, grad.options()));
    part.copy_(grad.mul_(valid * *scale));
  });
  return total;
}

at::Tensor plain::vocab_statistics(const at::Tensor& logits, const at::Tensor& labels,
                                   const VocabPart& part) {
  const auto options = logits.options().dtype(opmath_dtype(logits));
  if (labels.is_cpu()) {
    const at::Tensor counted = labels.masked_select(labels.ne(kIgnoredLabel));
    for (int64_t i = 0; i < counted.numel(); ++i)
      require_label(counted.const_data_ptr<int64_t>()[i], part.whole);
  }
  at::Tensor statistics = at::zeros({logits.size(0), 3}, options);
  if (logits.size(1) == 0) {
    statistics.select(1, 0).fill_(-std::numeric_limits<double>::infinity());
    return statistics;
  }
  for_few_rows(logits, [&](int64_t first, int64_t count) {
    const at::Tensor wide = logits.narrow(0, first, count).to(opmath_dtype(logits));
    const auto [column, inside] = columns_of(labels.narrow(0, first, count), logits.size(1), part);
    const at::Tensor most = wide.amax(1, /*keepdim=*/true);
    const at::Tensor picked = at::where(inside, wide.gather(1, column), at::zeros({}, options));
    statistics.narrow(0, first, count).copy_(at::cat({most, (wide - most).exp_().sum(1, true), picked}, 1));
  });
  return statistics;
}

void plain::vocab_gradient(const at::Tensor& logits, const at::Tensor& labels, const VocabPart& part,
                           const at::Tensor& log_sum_exp, const at::Tensor& scale) {
  if (logits.size(1) == 0) return;
  for_few_rows(logits, [&](int64_t first, int64_t count) {
    at::Tensor chunk = logits.narrow(0, first, count);
    const at::Tensor label = labels.narrow(0, first, count);
    const auto [column, inside] = columns_of(label, logits.size(1), part);
    at::Tensor grad =
        (chunk.to(opmath_dtype(logits)) - log_sum_exp.narrow(0, first, count).unsqueeze(1)).exp_();
    grad.scatter_add_(1, column, inside.to(grad.scalar_type()).neg_());
    chunk.copy_(grad.mul_(label.ne(kIgnoredLabel).unsqueeze(1) * scale));
  });
}

}  // namespace hyperion::kernels
