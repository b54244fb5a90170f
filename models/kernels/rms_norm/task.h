// The arguments of the RMSNorm CUDA kernels.
#pragma once

#include "models/kernels/common/launch.h"

namespace hyperion::kernels {

struct AddRmsNormTask {
  const void *x = nullptr, *residual = nullptr;  // [rows, n]
  const void* weight = nullptr;                  // [n]
  int64_t rows = 0, n = 0;
  float eps = 0;
  void *sum = nullptr, *output = nullptr;  // [rows, n]
  float* rstd = nullptr;                   // [rows]
};

// The largest number of further terms of a gradient.
constexpr int kMoreTerms = 2;

struct AddRmsNormBackwardTask {
  const void *grad = nullptr, *grad_sum = nullptr, *sum = nullptr;  // [rows, n]
  // Further terms of grad, [rows, n] each; null after the last. The sum goes from the last term to grad and
  // is rounded after each addition.
  const void* more[kMoreTerms] = {};
  const void* weight = nullptr;  // [n]
  const float* rstd = nullptr;   // [rows]
  int64_t rows = 0, n = 0;
  int64_t blocks = 0;           // rms_norm_blocks(rows)
  void* grad_x = nullptr;       // [rows, n]
  float* partial = nullptr;     // [blocks, n], work space
  void* grad_weight = nullptr;  // [n]
};
// Returns how many blocks share the rows of a backward. It is the same on every GPU, because the order of a
// sum depends on it.
inline int64_t rms_norm_blocks(int64_t rows) {
  constexpr int64_t kMost = 512;
  return rows < kMost ? rows : kMost;
}

cudaError_t launch(const AddRmsNormTask& task, Element element, cudaStream_t stream);
cudaError_t launch(const AddRmsNormBackwardTask& task, Element element, cudaStream_t stream);

}  // namespace hyperion::kernels
