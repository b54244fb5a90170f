// Calls cross_entropy/cuda.cuh with tensors.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include "models/kernels/common/tensors.h"
#include "models/kernels/cross_entropy/cross_entropy.h"
#include "models/kernels/cross_entropy/task.h"

namespace hyperion::kernels::cuda {

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

inline const float* fp32_of(const Tensor& x, int64_t n, const Tensor& like, const char* what) {
  TORCH_CHECK(
      x.scalar_type() == at::kFloat && x.device() == like.device() && x.numel() == n && x.is_contiguous(),
      what, ": ", x.numel(), " numbers in ", x.scalar_type(), " on ", x.device(), ", expected ", n,
      " in fp32 on ", like.device());
  return x.const_data_ptr<float>();
}

template <typename Launch>
Tensor cross_entropy(const Launch& launch, const Tensor& logits, const Tensor& labels, const Tensor* scale,
                     double z_loss) {
  CrossEntropyTask task = rows_of(logits, labels, "cross_entropy_");
  const auto options = logits.options().dtype(at::kFloat);
  Tensor losses = z_loss == 0 ? at::empty({task.rows}, options) : at::empty({2, task.rows}, options);
  task.z_loss = static_cast<float>(z_loss);
  task.losses = losses.mutable_data_ptr<float>();
  if (scale != nullptr) task.scale = fp32_of(*scale, 1, logits, "cross_entropy_: scale");
  launch(task, element_of(logits, "cross_entropy_"));
  return z_loss == 0 ? losses.sum() : losses.sum(1);
}

template <typename Launch>
Tensor vocab_statistics(const Launch& launch, const Tensor& logits, const Tensor& labels,
                        const VocabPart& part) {
  CrossEntropyTask task = rows_of(logits, labels, "vocab_statistics");
  task.first = part.first;
  task.vocabulary = part.vocab;
  Tensor statistics = at::empty({task.rows, 3}, logits.options().dtype(at::kFloat));
  task.statistics = statistics.mutable_data_ptr<float>();
  launch(task, element_of(logits, "vocab_statistics"));
  return statistics;
}

template <typename Launch>
void vocab_gradient(const Launch& launch, const Tensor& logits, const Tensor& labels, const VocabPart& part,
                    const Tensor& log_sum_exp, const Tensor& scale, double z_loss) {
  CrossEntropyTask task = rows_of(logits, labels, "vocab_gradient_");
  task.first = part.first;
  task.vocabulary = part.vocab;
  task.log_sum_exp = fp32_of(log_sum_exp, task.rows, logits, "vocab_gradient_: log_sum_exp");
  task.scale = fp32_of(scale, 1, logits, "vocab_gradient_: scale");
  task.z_loss = static_cast<float>(z_loss);
  launch(task, element_of(logits, "vocab_gradient_"));
}

}  // namespace hyperion::kernels::cuda
