// The arguments of the CUDA kernels of packed sums. Weights are fp32, and rows are contiguous.
#pragma once

#include "models/kernels/common/launch.h"

namespace hyperion::kernels {

struct PackRowSumsTask {
  const void* in = nullptr;  // [rows, n]
  uint8_t* out = nullptr;    // [tokens, row_bytes]
  const int32_t* rows = nullptr;
  const float* weights = nullptr;
  int64_t tokens = 0, n = 0, row_bytes = 0;
  int top_k = 0;
};

struct SumPackedRowsTask {
  const uint8_t* in = nullptr;  // [rows, row_bytes]
  const void* added = nullptr;  // [tokens, n] or null
  void* out = nullptr;          // [tokens, n]
  const int32_t* rows = nullptr;
  const float* weights = nullptr;
  int64_t tokens = 0, n = 0, row_bytes = 0;
  int top_k = 0;
};

cudaError_t launch(const PackRowSumsTask& task, Element element, cudaStream_t stream);
cudaError_t launch(const SumPackedRowsTask& task, Element element, cudaStream_t stream);

}  // namespace hyperion::kernels
