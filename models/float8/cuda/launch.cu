#include "models/float8/cuda/amax_kernel.cuh"
#include "models/float8/cuda/cast_kernel.cuh"
#include "models/float8/cuda/mx_kernel.cuh"
#include "models/float8/cuda/rescale_kernel.cuh"
#include "models/float8/cuda/scale_kernel.cuh"

namespace hyperion::float8 {
namespace {

// Launches one block for each of `blocks` parts of the task.
template <typename Task>
cudaError_t launch(void (*kernel)(Task), const Task& task, int64_t blocks, int threads, cudaStream_t stream) {
  if (blocks == 0) return cudaSuccess;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  kernel<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(task);
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch_from(const CastTask& task, bool e5m2, cudaStream_t stream) {
  return launch(e5m2 ? cast_tile<T, __NV_E5M2> : cast_tile<T, __NV_E4M3>, task, tiles_of(task), kThreads,
                stream);
}

}  // namespace

cudaError_t launch_cast(const CastTask& task, From from, bool e5m2, cudaStream_t stream) {
  switch (from) {
    case From::kFloat:
      return launch_from<float>(task, e5m2, stream);
    case From::kBFloat16:
      return launch_from<__nv_bfloat16>(task, e5m2, stream);
    case From::kFloat8:
      return launch_from<uint8_t>(task, e5m2, stream);  // moves bits, so the format does not matter
  }
  return cudaErrorInvalidValue;
}

cudaError_t launch_mx(const MxTask& task, From from, cudaStream_t stream) {
  return launch(from == From::kFloat ? cast_mx_tile<float> : cast_mx_tile<__nv_bfloat16>, task,
                tiles_of(task), kMxThreads, stream);
}

cudaError_t launch_group_amax(const GroupAmaxTask& task, From from, cudaStream_t stream) {
  return launch(from == From::kFloat ? amax_of_groups<float> : amax_of_groups<__nv_bfloat16>, task,
                blocks_of(task), kThreads, stream);
}

cudaError_t launch_scale(const ScaleTask& task, From from, cudaStream_t stream) {
  return launch(from == From::kFloat ? scale_each<float> : scale_each<__nv_bfloat16>, task, blocks_of(task),
                kScaleThreads, stream);
}

cudaError_t launch_rescale(const RescaleTask& task, cudaStream_t stream) {
  return launch(rescale_chunk, task, blocks_of(task), kRescaleThreads, stream);
}

}  // namespace hyperion::float8
