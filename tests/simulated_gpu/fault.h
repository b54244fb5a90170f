// A simulated GPU that fails.
#pragma once

#include <cuda_runtime_api.h>

namespace simulated_gpu {

// HYPERION_SIMULATED_FAULT="ERROR@RANK:KERNELS": the GPU of that rank (RANK; 0 without it) fails when KERNELS
// kernels have been launched: later calls return the error, or, for "abort", the driver ends the process.
// What a call returns, then; `kernel`: it launches one.
cudaError_t fault(bool kernel = false);

}  // namespace simulated_gpu
