// What computes libtorch's attention kernels of GPUs on a CPU.
#pragma once

#include "tests/simulated_gpu/substitutes.h"

namespace simulated_gpu {

Values flash(const Values& a);
Values flash_backward(const Values& a);
Values efficient(const Values& a);
Values efficient_backward(const Values& a);
Values flash_sequences(const Values& a);
Values flash_sequences_backward(const Values& a);
Values efficient_sequences(const Values& a);
Values efficient_sequences_backward(const Values& a);
Values cudnn(const Values& a);
Values cudnn_results(const Values& a);
Values cudnn_backward(const Values& a);
Values cudnn_backward_results(const Values& a);
Values cudnn_sequences(const Values& a);
Values cudnn_sequences_results(const Values& a);

}  // namespace simulated_gpu
