// The conventions of launching our CUDA kernels. Each kernel takes a task with raw pointers, so that nvcc
// sees no libtorch. Tensors are fp32 or bf16, and all tensors of a task have one dtype unless its comments
// say otherwise. Strides and extents count elements. Rows are read 16 bytes at a time if addresses, strides
// and extents allow it, else element by element. launch() returns the launch error.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace hyperion::kernels {

enum class Element { kFloat, kBFloat16 };

}  // namespace hyperion::kernels
