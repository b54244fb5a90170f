#include "trainer/optim/newton_schulz.h"

#include <algorithm>

#include <ATen/ops/addmm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>

#include "models/kernels/matmul/matmul.h"

namespace hyperion::optim {
namespace {

// Returns the dtype in which matrices of x's dtype are multiplied; results are rounded to x's once.
at::ScalarType product_dtype(const at::Tensor& x) {
  const bool widens = x.is_cpu() && x.scalar_type() == at::kBFloat16 && kernels::widens_bf16();
  return widens ? at::kFloat : x.scalar_type();
}

}  // namespace

std::vector<NewtonSchulzStep> newton_schulz_steps(config::MuonCoefficients coefficients, int64_t steps) {
  static const std::vector<NewtonSchulzStep> quintic = {{3.4445, -4.7750, 2.0315}};
  static const std::vector<NewtonSchulzStep> polar_express = {{4.0848, -6.8946, 2.9270},
                                                              {3.9505, -6.3029, 2.6377},
                                                              {3.7418, -5.5913, 2.3037},
                                                              {2.8769, -3.1427, 1.2046},
                                                              {2.8366, -3.0525, 1.2012}};
  const auto& known = coefficients == config::MuonCoefficients::kQuintic ? quintic : polar_express;
  std::vector<NewtonSchulzStep> result;
  for (int64_t step = 0; step < steps; ++step)
    result.push_back(known[std::min(known.size() - 1, static_cast<size_t>(step))]);
  return result;
}

at::Tensor orthogonalize(const at::Tensor& matrix, const std::vector<NewtonSchulzStep>& steps) {
  const bool tall = matrix.size(0) > matrix.size(1);
  // The bits of a product on a CPU depend on how its operands are aligned: those of a new tensor always are.
  const at::Tensor aligned = matrix.clone(at::MemoryFormat::Contiguous);
  at::Tensor x = tall ? aligned.t() : aligned;
  x.div_(at::linalg_vector_norm(x).clamp_min(1e-7));
  const at::ScalarType stored = x.scalar_type(), multiplied = product_dtype(x);
  const auto rounded = [&](const at::Tensor& product) { return product.to(stored).to(multiplied); };
  x = x.to(multiplied);
  for (const auto& [a, b, c] : steps) {
    const at::Tensor gram = rounded(at::mm(x, x.t()));
    const at::Tensor update = rounded(at::addmm(gram, gram, gram, b, c));
    x = rounded(at::addmm(x, update, x, a));
  }
  x = x.to(stored);
  return tall ? x.t() : x;
}

double newton_schulz_flops(int64_t rows, int64_t columns, int64_t steps) {
  const auto m = static_cast<double>(std::min(rows, columns)),
             n = static_cast<double>(std::max(rows, columns));
  return static_cast<double>(steps) * (4 * m * m * n + 2 * m * m * m);
}

}  // namespace hyperion::optim
