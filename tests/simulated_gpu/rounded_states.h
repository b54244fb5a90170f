// What computes the kernels of optimizer states in bf16 (models/kernels/adam/rounded.h) on a CPU.
#pragma once

#include "tests/simulated_gpu/substitutes.h"

namespace simulated_gpu {

// Null: no such kernel.
const Substitute* rounded_state_update(const std::string& name);

}  // namespace simulated_gpu
