// What the CUDA kernel behind cast() is given: raw pointers, so that nvcc sees no libtorch.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace hyperion::float8 {

enum class CastFrom { kFloat, kBFloat16, kFloat8 };

// All pointers but row_scale are aligned to 16 bytes.
struct CastTask {
  const void* x = nullptr;  // [m, n], row-major
  int64_t m = 0, n = 0;     // n: a multiple of 16
  // One scale, or one for each row; null where `rows` is.
  const float* row_scale = nullptr;
  bool scale_each_row = false;
  uint8_t* rows = nullptr;  // [m, n]; null: not wanted, as always when x is FP8
  // One scale, or one for each column; null where `columns` is, and when x is FP8.
  const float* column_scale = nullptr;
  bool scale_each_column = false;
  uint8_t* columns = nullptr;  // [n, padded_m]; null: not wanted
  int64_t padded_m = 0;        // m rounded up to a multiple of 16
};

// Casts to e5m2 or e4m3 and returns how the launch went.
cudaError_t launch_cast(const CastTask& task, CastFrom from, bool e5m2, cudaStream_t stream);

}  // namespace hyperion::float8
