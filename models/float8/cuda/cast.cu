#include "models/float8/cuda/cast_kernel.cuh"

namespace hyperion::float8 {
namespace {

template <typename T, __nv_fp8_interpretation_t kFormat>
cudaError_t launch(const CastTask& task, cudaStream_t stream) {
  const int64_t tiles = tiles_of(task);
  if (tiles == 0) return cudaSuccess;
  if (tiles > INT32_MAX) return cudaErrorInvalidConfiguration;
  cast_tile<T, kFormat><<<static_cast<unsigned>(tiles), kThreads, 0, stream>>>(task);
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch(const CastTask& task, bool e5m2, cudaStream_t stream) {
  return e5m2 ? launch<T, __NV_E5M2>(task, stream) : launch<T, __NV_E4M3>(task, stream);
}

}  // namespace

cudaError_t launch_cast(const CastTask& task, CastFrom from, bool e5m2, cudaStream_t stream) {
  switch (from) {
    case CastFrom::kFloat:
      return launch<float>(task, e5m2, stream);
    case CastFrom::kBFloat16:
      return launch<__nv_bfloat16>(task, e5m2, stream);
    case CastFrom::kFloat8:
      return launch<uint8_t, __NV_E4M3>(task, stream);  // moves bits, so the format does not matter
  }
  return cudaErrorInvalidValue;
}

}  // namespace hyperion::float8
