// libtorch's CUDA operators on the simulated GPU.
#pragma once

namespace simulated_gpu {

// From now on each operator of the CUDA backend also runs on the CPU, over the same memory. The first call
// counts, when libtorch's CUDA library has been loaded.
void take_over_operators();

}  // namespace simulated_gpu
