#include <ATen/ops/linalg_vector_norm.h>

#include "models/kernels/sum_of_squares/sum_of_squares.h"

namespace hyperion::kernels::plain {

at::Tensor sum_of_squares(const at::Tensor& x) {
  if (x.is_cpu()) return x.to(at::kDouble).square().sum();
  return at::linalg_vector_norm(x, 2, std::nullopt, false, at::kFloat).square();
}

}  // namespace hyperion::kernels::plain
