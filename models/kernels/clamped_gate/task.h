// The arguments of the clamped gate's CUDA kernels.
#pragma once

#include "models/kernels/common/launch.h"

namespace hyperion::kernels {

// The kernel runs backward if `grad` is not null. All tensors are contiguous.
struct ClampedGateTask {
  const void* h = nullptr;     // [count, 2]: gate and up in turn
  int64_t count = 0;           // of pairs
  void* output = nullptr;      // forward: [count]
  const void* grad = nullptr;  // backward: [count]
  void* grad_h = nullptr;      // [count, 2]
};

cudaError_t launch(const ClampedGateTask& task, Element element, cudaStream_t stream);

}  // namespace hyperion::kernels
