// Recognizes GPU failures in the text of libtorch's and NCCL's exceptions, which quote CUDA's message.
#pragma once

#include <exception>
#include <optional>
#include <string>

#include "base/error.h"

namespace hyperion {

struct GpuFault {
  int number;        // cudaError_t: 214
  std::string what;  // "CUDA error 214: uncorrectable ECC error encountered"
};

// Recognizes errors after which no kernel of this process runs any more and whose cause is the GPU, its
// links or its host: 46, 214, 220, 226, 714, 719, 802, 999. Also 700, an illegal address, caused by a
// faulty GPU or by a bug; whether it recurs on another host tells which (scripts/failures.py).
std::optional<GpuFault> gpu_fault(const std::exception& error);

// The message about a fault, and what to do.
std::string gpu_fault_message(const GpuFault& fault);

// The Error with which an exception ends a job: itself if it is an Error; Error(kResources) if memory or
// threads ran out, Error(kHardware) if a GPU failed, else Error(kBug).
Error error_from(const std::exception& error);

}  // namespace hyperion
