// Arguments of the FP8 CUDA kernels, with raw pointers, so that nvcc sees no libtorch.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace hyperion::float8 {

enum class From { kFloat, kBFloat16, kFloat8 };

// The scales of one copy. If `scale` is null, the kernel computes them from `amax` and writes made_scale and
// made_inverse.
struct CastScales {
  bool each = false;             // whether each row (row-major copy) or column has its own scale
  const float* scale = nullptr;  // may be null
  const void* amax = nullptr;
  bool amax_is_bf16 = false;                             // fp32 otherwise
  float *made_scale = nullptr, *made_inverse = nullptr;  // as many as amaxes
};

// A cast to row-major and column-major copies. x, each row of x, `rows` and `columns` are aligned to 16
// bytes.
struct CastTask {
  const void* x = nullptr;                   // [m, n], row-major
  int64_t stride = 0;                        // between rows of x, in elements: n, or more if rows have gaps
  int64_t m = 0, n = 0;                      // n: a multiple of 16
  CastScales row_scales{}, column_scales{};  // unused without such a copy, and if x is FP8
  // [m], or null. If not null, column scales are [groups, n], and row i uses those of group groups[i].
  const int64_t* groups = nullptr;
  // If not 0, x is a stack of matrices of this number of rows, a multiple of 16: column scales are
  // [matrices, n], and `columns` is [matrices, n, stack_rows].
  int64_t stack_rows = 0;
  uint8_t* rows = nullptr;     // [m, n]; null: no such copy, always if x is FP8
  uint8_t* columns = nullptr;  // [n, padded_m]; null: no such copy
  int64_t padded_m = 0;        // m rounded up to a multiple of 16
  // ScaleTask has the same two, for scales that are computed from largest magnitudes.
  double largest = 0;
  bool power_of_two = false;
};

// A cast to e4m3 in blocks of 32 with an E8M0 scale each (models/float8/blocks.h).
struct MxTask {
  const void* x = nullptr;  // [m, n], row-major, aligned to 16 bytes; n: a multiple of 32
  int64_t m = 0, n = 0;
  bool rounds_up = false;
  uint8_t *rows = nullptr, *row_scales = nullptr;  // [m, n], [m, n / 32]; null: no such copy
  uint8_t *columns = nullptr,
          *column_scales = nullptr;  // [n, padded_m], [n, padded_m / 32]; null: no such copy
  int64_t padded_m = 0;              // m rounded up to a multiple of 32
};

// amax_of_groups() on a GPU.
struct GroupAmaxTask {
  const void* x = nullptr;        // [m, n], row-major, each row aligned to 16 bytes
  int64_t stride = 0;             // between rows of x, in elements
  int64_t m = 0, n = 0;           // n: a multiple of 16
  const int32_t* ends = nullptr;  // [groups]
  int groups = 0;
  unsigned* amax = nullptr;  // [groups, n], the bits of fp32 numbers; zeros before the launch
};

// scales_of() on a GPU.
struct ScaleTask {
  const void* amax = nullptr;  // [count]
  int64_t count = 0;
  float *scale = nullptr, *inverse = nullptr;  // [count]
  double largest = 0;                          // the largest number of the FP8 dtype
  bool power_of_two = false;
};

// rescale_in_place() on a GPU.
struct RescaleTask {
  void* product = nullptr;                        // [m, n], row-major, bf16, aligned to 16 bytes
  int64_t m = 0, n = 0;                           // n: a multiple of 8
  const float *row = nullptr, *column = nullptr;  // one factor, or one for each row or column
  bool each_row = false, each_column = false;
};

// These launch the kernels on `stream` and return the launch error. The cast is to e5m2 or e4m3.
cudaError_t launch_cast(const CastTask& task, From from, bool e5m2, cudaStream_t stream);
// `from` is fp32 or bf16.
cudaError_t launch_mx(const MxTask& task, From from, cudaStream_t stream);
// `from` is fp32 or bf16.
cudaError_t launch_group_amax(const GroupAmaxTask& task, From from, cudaStream_t stream);
// `from` is the amax's dtype, fp32 or bf16.
cudaError_t launch_scale(const ScaleTask& task, From from, cudaStream_t stream);
cudaError_t launch_rescale(const RescaleTask& task, cudaStream_t stream);

}  // namespace hyperion::float8
