// The Newton-Schulz iteration that makes a matrix nearly orthogonal (Jordan et al., "Muon", 2024): singular
// values go towards 1, singular vectors stay. Operations and their order are torch.optim.Muon's.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/config/choices.h"

namespace hyperion::optim {

// The a, b, c of one step X <- a X + (b A + c A^2) X, A = X X^T.
using NewtonSchulzStep = std::array<double, 3>;

// Returns the coefficients of `steps` steps: Jordan's for each (quintic), or those of Amsel et al., arXiv
// 2505.16932, of which the last is repeated (polar_express).
std::vector<NewtonSchulzStep> newton_schulz_steps(config::MuonCoefficients coefficients, int64_t steps);

// Returns the iteration's result of a matrix [rows, columns], in its dtype, which is the one that it computes
// in. The matrix is divided by its norm first, or by 1e-7 if that is larger. On CPUs without bf16
// instructions products of bf16 are computed in fp32 and rounded once (models/kernels/matmul/matmul.h).
at::Tensor orthogonalize(const at::Tensor& matrix, const std::vector<NewtonSchulzStep>& steps);

// Returns the FLOPs of `steps` steps with a matrix of these extents.
double newton_schulz_flops(int64_t rows, int64_t columns, int64_t steps);

}  // namespace hyperion::optim
