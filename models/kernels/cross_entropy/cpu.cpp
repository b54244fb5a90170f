#include <algorithm>
#include <cmath>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "base/device/parallel_for.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/common/rows.h"
#include "models/kernels/cross_entropy/cross_entropy.h"

namespace hyperion::kernels::cpu {

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor* scale) {
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

at::Tensor vocab_statistics(const at::Tensor& logits, const at::Tensor& labels, const VocabPart& part) {
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

void vocab_gradient(const at::Tensor& logits, const at::Tensor& labels, const VocabPart& part,
                    const at::Tensor& log_sum_exp, const at::Tensor& scale) {
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

}  // namespace hyperion::kernels::cpu
