// The arguments of the gated activation CUDA kernels.
#pragma once

#include "models/args/activation.h"
#include "models/kernels/common/launch.h"

namespace hyperion::kernels {

// The kernel runs backward if `grad` is not null.
struct GatedActivationTask {
  models::Activation activation = {};
  const void *gate = nullptr, *up = nullptr;  // [rows, n]
  int64_t gate_stride = 0, up_stride = 0;     // between rows
  int64_t rows = 0, n = 0;
  void* output = nullptr;  // forward: [rows, n]
  // Backward:
  const void* grad = nullptr;  // [rows, n]
  int64_t grad_stride = 0;
  void* packed = nullptr;  // [rows, 2 n]: the gradients of gate, then of up
};

cudaError_t launch(const GatedActivationTask& task, Element element, cudaStream_t stream);

}  // namespace hyperion::kernels
