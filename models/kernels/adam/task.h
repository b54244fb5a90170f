// The arguments of the CUDA kernels of rounded.h. A launch updates up to kTensorsOfLaunch tensors.
#pragma once

#include "models/kernels/adam/element_indices.h"
#include "models/kernels/common/launch.h"

namespace hyperion::kernels {

inline constexpr int kTensorsOfLaunch = 24;  // a kernel's arguments have 4 KiB
inline constexpr int64_t kElementsOfBlock = 16384;

// The part of a parameter. Moments and copy hold the bits of bf16 numbers.
struct RoundedTensor {
  float *weight = nullptr, *grad = nullptr;
  uint16_t *first = nullptr, *second = nullptr;
  uint16_t* copy = nullptr;  // or null
  int64_t numel = 0;
  uint64_t key = 0;
  ElementIndices indices{};
};

// Its kernel updates a momentum if `beta2` is negative, which has no weights and no second moments.
struct RoundedUpdateTask {
  RoundedTensor tensors[kTensorsOfLaunch];
  int first_block[kTensorsOfLaunch + 1] = {};                           // of each tensor, and of the end
  int count = 0;                                                        // tensors
  const float *updates = nullptr, *skip = nullptr, *divisor = nullptr;  // on the device; divisor: or null
  double lr = 0, beta1 = 0, beta2 = -1;
  float shrink = 1, added_decay = 0, eps = 0;
  bool nesterov = false;
};

cudaError_t launch(const RoundedUpdateTask& task, Element element, cudaStream_t stream);

}  // namespace hyperion::kernels
