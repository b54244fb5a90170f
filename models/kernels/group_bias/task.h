// The arguments of the CUDA kernels of groups' biases.
#pragma once

#include "models/kernels/common/launch.h"

namespace hyperion::kernels {

struct GroupBiasTask {
  void* rows = nullptr;  // [count, n]
  int64_t stride = 0;    // between rows
  int64_t count = 0, n = 0;
  const void* bias = nullptr;     // [groups, n]
  const int32_t* ends = nullptr;  // [groups]
  int groups = 0;
};

struct SumGroupsTask {
  const void* grad = nullptr;  // [rows, n]
  int64_t stride = 0, n = 0;
  const int32_t* ends = nullptr;  // [groups]
  int groups = 0;
  void* sums = nullptr;  // [groups, n]
};

cudaError_t launch(const GroupBiasTask& task, Element element, cudaStream_t stream);
cudaError_t launch(const SumGroupsTask& task, Element element, cudaStream_t stream);

}  // namespace hyperion::kernels
