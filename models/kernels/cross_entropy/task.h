// The arguments of the cross-entropy CUDA kernels.
#pragma once

#include "models/kernels/common/launch.h"

namespace hyperion::kernels {

// Rows of logits over a shard of the vocabulary. If `losses` is not null, the kernel computes losses, and
// with `scale` the gradient too. Otherwise it computes statistics, or the gradient from log_sum_exp.
struct CrossEntropyTask {
  void* logits = nullptr;           // [rows, columns]; the gradient overwrites them
  const int64_t* labels = nullptr;  // [rows]
  int64_t rows = 0, columns = 0;
  int64_t first = 0, vocabulary = 0;   // the first column's index in the vocabulary, and its size
  const float* scale = nullptr;        // scales the gradient; null: no gradient
  float* losses = nullptr;             // [rows]; with z-loss [2, rows], the squares of log-sum-exp second
  float* statistics = nullptr;         // [rows, 3]
  const float* log_sum_exp = nullptr;  // [rows]
  float z_loss = 0;                    // the coefficient of (log-sum-exp)^2 in the loss; 0: none
};

cudaError_t launch(const CrossEntropyTask& task, Element element, cudaStream_t stream);

}  // namespace hyperion::kernels
