#include <algorithm>
#include <cmath>

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "base/device/parallel_for.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/common/rows.h"
#include "models/kernels/common/scratch.h"
#include "models/kernels/cross_entropy/cross_entropy.h"

namespace hyperion::kernels::cpu {
namespace {

// Multiplies a row by the factor of a softmax's gradient with z-loss.
void scale_for_z_loss(float* row, int64_t columns, double z_loss, float log_sum_exp) {
  const auto factor = static_cast<float>(1 + 2 * z_loss * static_cast<double>(log_sum_exp));
  for (int64_t i = 0; i < columns; ++i) row[i] *= factor;
}

// Calls work(r, elements, row) for each row of the logits, in parallel; `row` is scratch of a row's size.
template <typename Work>
void for_rows(const at::Tensor& logits, const Work& work) {
  const int64_t columns = logits.size(1);
  with_element_type(logits, [&]<typename T>(T) {
    T* data = logits.mutable_data_ptr<T>();
    parallel_for(0, logits.size(0), 4, [&](int64_t begin, int64_t end) {
      float* row = thread_scratch(columns);
      for (int64_t r = begin; r < end; ++r) work(r, data + r * columns, row);
    });
  });
}

}  // namespace

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor* scale,
                         double z_loss) {
  const int64_t count = logits.size(0), vocab = logits.size(1);
  const at::Tensor losses = at::zeros({count}, logits.options().dtype(at::kDouble));
  const at::Tensor squares = at::zeros({z_loss == 0 ? 0 : count}, losses.options());  // of log-sum-exp
  const auto* label = labels.const_data_ptr<int64_t>();
  const float factor = scale == nullptr ? 0.0F : scale->item<float>();
  for_rows(logits, [&]<typename T>(int64_t r, T* elements, float* row) {
    if (label[r] == kIgnoredLabel) {
      if (scale != nullptr) std::fill(elements, elements + vocab, T(0));
      return;
    }
    require_label(label[r], vocab);
    rows::widen(elements, row, vocab);
    const float logit = row[label[r]];
    float maximum = 0, sum = 0;
    rows::exponentials(row, vocab, maximum, sum);
    const float log_sum_exp = maximum + std::log(sum);
    losses.mutable_data_ptr<double>()[r] = static_cast<double>(log_sum_exp) - static_cast<double>(logit);
    if (z_loss != 0)
      squares.mutable_data_ptr<double>()[r] =
          static_cast<double>(log_sum_exp) * static_cast<double>(log_sum_exp);
    if (scale == nullptr) return;
    if (z_loss != 0) scale_for_z_loss(row, vocab, z_loss, log_sum_exp);
    row[label[r]] -= sum;  // the softmax, times the sum, less 1
    rows::narrow_scaled(row, factor / sum, elements, vocab);
  });
  if (z_loss == 0) return sum_of_losses(losses).to(at::kFloat);
  return at::stack({sum_of_losses(losses), sum_of_losses(squares)}).to(at::kFloat);
}

at::Tensor vocab_statistics(const at::Tensor& logits, const at::Tensor& labels, const VocabPart& part) {
  const int64_t count = logits.size(0), columns = logits.size(1);
  at::Tensor statistics = at::empty({count, 3}, logits.options().dtype(at::kFloat));
  const auto* label = labels.const_data_ptr<int64_t>();
  float* out = statistics.mutable_data_ptr<float>();
  for_rows(logits, [&](int64_t r, const auto* elements, float* row) {
    if (label[r] != kIgnoredLabel) require_label(label[r], part.vocab);
    rows::widen(elements, row, columns);
    const int64_t column = label[r] - part.first;
    out[3 * r + 2] = column >= 0 && column < columns ? row[column] : 0.0F;
    rows::exponentials(row, columns, out[3 * r], out[3 * r + 1]);
  });
  return statistics;
}

void vocab_gradient(const at::Tensor& logits, const at::Tensor& labels, const VocabPart& part,
                    const at::Tensor& log_sum_exp, const at::Tensor& scale, double z_loss) {
  const int64_t columns = logits.size(1);
  const auto* label = labels.const_data_ptr<int64_t>();
  const auto* lse = log_sum_exp.const_data_ptr<float>();
  const auto factor = scale.item<float>();
  for_rows(logits, [&]<typename T>(int64_t r, T* elements, float* row) {
    if (label[r] == kIgnoredLabel) {
      std::fill(elements, elements + columns, T(0));
      return;
    }
    rows::widen(elements, row, columns);
    rows::softmax(row, lse[r], factor, columns);
    if (z_loss != 0) scale_for_z_loss(row, columns, z_loss, lse[r]);
    const int64_t column = label[r] - part.first;
    if (column >= 0 && column < columns) row[column] -= factor;
    rows::narrow(row, elements, columns);
  });
}

}  // namespace hyperion::kernels::cpu
