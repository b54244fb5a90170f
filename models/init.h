// Initial weights. Element i of a parameter depends on (seed, name, i) alone, so every mesh starts from the
// same model.
#pragma once

#include <cstdint>

#include "base/parameter.h"

namespace hyperion::models {

// Fills `part` (fp32 or fp64 or bf16, of box.shape, on the CPU or a device) with the initial values of this
// box of the parameter.
//
// The stream of a parameter is Philox4x32-10 with key XXH3-64(fqn, seed). Block b gives the elements 2b and
// 2b+1 of the row-major global tensor: u = uniform_open(word 0, word 1), respectively (word 2, word 3); z =
// quantile of the standard normal at lo + u (hi - lo), with lo, hi the probabilities of the truncation
// bounds; value = clamp(std z, low, high), computed in double and rounded once.
void initialize(const Parameter& parameter, uint64_t seed, const Box& box, at::Tensor& part);

// Quantile of the standard normal: algorithm AS 241 (PPND16) of M. J. Wichura, Applied Statistics 37 (1988),
// about 16 digits. p in (0, 1).
double normal_quantile(double p);

}  // namespace hyperion::models
