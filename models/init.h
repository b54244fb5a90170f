// Initialization of weights. Element i of a parameter depends only on (seed, name, i), so every mesh starts
// from the same model.
#pragma once

#include <cstdint>

#include "base/parameter.h"

namespace hyperion::models {

// Fills `part` with the initial values of `box`, a box of the global parameter. `part` has box.shape, is
// fp32, fp64 or bf16, and lies on the CPU or on a device.
//
// Each parameter has a random stream: Philox4x32-10 with key XXH3-64(fqn, seed). Block b of the stream gives
// elements 2b and 2b+1 of the row-major global tensor, from words (0, 1) and (2, 3). With u =
// uniform_open(words), lo and hi the probabilities of the truncation bounds and z = the quantile of the
// standard normal at lo + u (hi - lo), the value is clamp(std z, low, high), computed in double and rounded
// once.
void initialize(const Parameter& parameter, uint64_t seed, const Box& box, at::Tensor& part);

// Returns the quantile of the standard normal for p in (0, 1), to about 16 digits: algorithm AS 241 (PPND16)
// of M. J. Wichura, Applied Statistics 37 (1988).
double normal_quantile(double p);

}  // namespace hyperion::models
