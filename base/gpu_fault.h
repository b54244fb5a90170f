// GPUs that fail while a job runs, recognised among exceptions of libtorch and NCCL by their text, which
// quotes CUDA's sentence for its error.
#pragma once

#include <exception>
#include <optional>
#include <string>

#include "base/error.h"

namespace hyperion {

struct GpuFault {
  int number;        // CUDA's (cudaError_t): 214
  std::string what;  // "CUDA error 214: uncorrectable ECC error encountered"
};

// The errors after which no kernel of this process runs any more and for which the GPU, its links or its host
// are to blame: 46, 214, 220, 226, 714, 719, 802, 999. Also 700, an illegal address: a faulty GPU's or a
// bug's; which one shows when it comes on another host (scripts/failures.py).
std::optional<GpuFault> gpu_fault(const std::exception& error);

// What is said of it: the fault, and what to do.
std::string gpu_fault_message(const GpuFault& fault);

// What an exception ends a job with: itself, where it is an Error; Error(kResources) where memory or threads
// ran out, Error(kHardware) where a GPU failed, else Error(kBug).
Error error_from(const std::exception& error);

}  // namespace hyperion
