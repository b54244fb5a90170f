// What the CUDA kernels of FP8 are given: raw pointers, so that nvcc sees no libtorch.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace hyperion::float8 {

enum class From { kFloat, kBFloat16, kFloat8 };

// The scales of one copy: given, or those of amaxes, which are written down then.
struct CastScales {
  bool each = false;             // one for each row (of the row-major copy) or column, or one for all
  const float* scale = nullptr;  // given; null: made of `amax`
  const void* amax = nullptr;
  bool amax_is_bf16 = false;                             // fp32 otherwise
  float *made_scale = nullptr, *made_inverse = nullptr;  // as many as amaxes
};

// x, its rows, rows and columns are aligned to 16 bytes.
struct CastTask {
  const void* x = nullptr;             // [m, n], row-major
  int64_t stride = 0;                  // between rows of x, in elements: n, or more where they have gaps
  int64_t m = 0, n = 0;                // n: a multiple of 16
  CastScales of_rows{}, of_columns{};  // unused where there is no such copy, and when x is FP8
  // [m], or null. Scales of columns are given by group then, [groups, n], and row i has those of group
  // groups[i].
  const int64_t* groups = nullptr;
  uint8_t* rows = nullptr;     // [m, n]; null: not wanted, as always when x is FP8
  uint8_t* columns = nullptr;  // [n, padded_m]; null: not wanted
  int64_t padded_m = 0;        // m rounded up to a multiple of 16
  // Of scales that are made of amaxes: as ScaleTask's.
  double largest = 0;
  bool power_of_two = false;
};

// To e4m3 in blocks of 32 with an E8M0 scale each (models/float8/blocks.h).
struct MxTask {
  const void* x = nullptr;  // [m, n], row-major, aligned to 16 bytes; n: a multiple of 32
  int64_t m = 0, n = 0;
  bool rounds_up = false;
  uint8_t *rows = nullptr, *row_scales = nullptr;  // [m, n], [m, n / 32]; null: not wanted
  uint8_t *columns = nullptr,
          *column_scales = nullptr;  // [n, padded_m], [n, padded_m / 32]; null: not wanted
  int64_t padded_m = 0;              // m rounded up to a multiple of 32
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
// From fp32 or bf16.
cudaError_t launch_mx(const MxTask& task, From from, cudaStream_t stream);
// amax in fp32 or bf16.
cudaError_t launch_scale(const ScaleTask& task, From from, cudaStream_t stream);
cudaError_t launch_rescale(const RescaleTask& task, cudaStream_t stream);

}  // namespace hyperion::float8
