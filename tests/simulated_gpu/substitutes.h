// Operators that only GPUs have, and what computes the same on a CPU: attention kernels, FP8 products,
// products of bf16 that leave fp32, the backward of the fused RMSNorm, and kernels of our own.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

namespace simulated_gpu {

using Values = std::vector<c10::IValue>;

struct Substitute {
  Values (*compute)(const Values& arguments);
  // Makes the results' tensors where the original cannot (it asks a library for a plan); else null.
  Values (*results)(const Values& arguments);
};

// Null: an operator that the CPU has, or a range that is no kernel of ours.
const Substitute* substitute_for(const std::string& name, const std::string& overload);

}  // namespace simulated_gpu
