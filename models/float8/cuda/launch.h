// What the CUDA kernels of FP8 are given: raw pointers, so that nvcc sees no libtorch.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace hyperion::float8 {

enum class From { kFloat, kBFloat16, kFloat8 };

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

struct ScaleTask {
  const void* amax = nullptr;  // [count]
  int64_t count = 0;
  float *scale = nullptr, *inverse = nullptr;  // [count]
  double largest = 0;                          // the largest number of the FP8 dtype
  bool power_of_two = false;
};

struct RescaleTask {
  void* product = nullptr;                        // [m, n], row-major, bf16, aligned to 16 bytes
  int64_t m = 0, n = 0;                           // n: a multiple of 8
  const float *row = nullptr, *column = nullptr;  // one factor, or one for each row and each column
  bool each_row = false, each_column = false;
};

// Casts to e5m2 or e4m3. These return how the launch went.
cudaError_t launch_cast(const CastTask& task, From from, bool e5m2, cudaStream_t stream);
// amax in fp32 or bf16.
cudaError_t launch_scale(const ScaleTask& task, From from, cudaStream_t stream);
cudaError_t launch_rescale(const RescaleTask& task, cudaStream_t stream);

}  // namespace hyperion::float8
