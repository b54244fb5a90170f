// What every CUDA kernel of ours is launched with. Each has a task: raw pointers, so that nvcc sees no
// libtorch. Every tensor is fp32 or bf16, all of a task in one dtype where nothing else is said. Strides and
// extents count elements. launch() returns how the launch went. Rows are read 16 bytes at a time where
// addresses, strides and extents allow it, and element by element otherwise.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace hyperion::kernels {

enum class Element { kFloat, kBFloat16 };

}  // namespace hyperion::kernels
