#include "models/kernels/adam/cuda.cuh"
#include "models/kernels/clamped_gate/cuda.cuh"
#include "models/kernels/cross_entropy/cuda.cuh"
#include "models/kernels/expert_rows/cuda.cuh"
#include "models/kernels/gated_activation/cuda.cuh"
#include "models/kernels/group_bias/cuda.cuh"
#include "models/kernels/key_chunks/cuda.cuh"
#include "models/kernels/latent_heads/cuda.cuh"
#include "models/kernels/merge_parts/cuda.cuh"
#include "models/kernels/packed_sums/cuda.cuh"
#include "models/kernels/rms_norm/cuda.cuh"
#include "models/kernels/rope/cuda.cuh"
#include "models/kernels/router/cuda.cuh"

namespace hyperion::kernels {
namespace {

struct OnStream {
  cudaStream_t stream;

  template <typename Task>
  cudaError_t operator()(void (*kernel)(Task), const Task& task, int64_t blocks, unsigned threads) const {
    if (blocks == 0) return cudaSuccess;
    if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
    kernel<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(task);
    return cudaGetLastError();
  }
};

}  // namespace

cudaError_t launch(const RoundedUpdateTask& task, Element element, cudaStream_t stream) {
  return plan(task, element, OnStream{stream});
}
cudaError_t launch(const RopeTask& task, Element element, cudaStream_t stream) {
  return plan(task, element, OnStream{stream});
}
cudaError_t launch(const GatedActivationTask& task, Element element, cudaStream_t stream) {
  return plan(task, element, OnStream{stream});
}
cudaError_t launch(const ClampedGateTask& task, Element element, cudaStream_t stream) {
  return plan(task, element, OnStream{stream});
}
cudaError_t launch(const GroupBiasTask& task, Element element, cudaStream_t stream) {
  return plan(task, element, OnStream{stream});
}
cudaError_t launch(const SumGroupsTask& task, Element element, cudaStream_t stream) {
  return plan(task, element, OnStream{stream});
}
cudaError_t launch(const AddRmsNormTask& task, Element element, cudaStream_t stream) {
  return plan(task, element, OnStream{stream});
}
cudaError_t launch(const AddRmsNormBackwardTask& task, Element element, cudaStream_t stream) {
  return plan(task, element, OnStream{stream});
}
cudaError_t launch(const CrossEntropyTask& task, Element element, cudaStream_t stream) {
  return plan(task, element, OnStream{stream});
}
cudaError_t launch(const LatentHeadsTask& task, Element element, cudaStream_t stream) {
  return plan(task, element, OnStream{stream});
}
cudaError_t launch(const LatentHeadsBackwardTask& task, Element element, cudaStream_t stream) {
  return plan(task, element, OnStream{stream});
}
cudaError_t launch(const KeyChunksTask& task, Element element, cudaStream_t stream) {
  return plan(task, element, OnStream{stream});
}
cudaError_t launch(const MergePartsTask& task, Element element, cudaStream_t stream) {
  return plan(task, element, OnStream{stream});
}
cudaError_t launch(const RouteTokensTask& task, Element element, cudaStream_t stream) {
  return plan(task, element, OnStream{stream});
}
cudaError_t launch(const RoutingWeightsTask& task, Element element, cudaStream_t stream) {
  return plan(task, element, OnStream{stream});
}
cudaError_t launch(const OrderRowsTask& task, Element element, cudaStream_t stream) {
  return plan(task, element, OnStream{stream});
}
cudaError_t launch(const GatherRowsTask& task, Element element, cudaStream_t stream) {
  return plan(task, element, OnStream{stream});
}
cudaError_t launch(const SumRowsTask& task, Element element, cudaStream_t stream) {
  return plan(task, element, OnStream{stream});
}
cudaError_t launch(const RowProductsTask& task, Element element, cudaStream_t stream) {
  return plan(task, element, OnStream{stream});
}
cudaError_t launch(const PackRowSumsTask& task, Element element, cudaStream_t stream) {
  return plan(task, element, OnStream{stream});
}
cudaError_t launch(const SumPackedRowsTask& task, Element element, cudaStream_t stream) {
  return plan(task, element, OnStream{stream});
}

}  // namespace hyperion::kernels
