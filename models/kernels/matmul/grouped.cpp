#include "models/kernels/matmul/grouped.h"

#include <ATen/ops/empty.h>

#include "models/kernels/matmul/matmul.h"

namespace hyperion::kernels {

at::Tensor grouped_matmul(const at::Tensor& a, const at::Tensor& b, std::span<const int64_t> counts) {
  const at::Tensor out = at::empty({a.size(0), b.size(2)}, a.options());
  int64_t first = 0;
  for (size_t e = 0; e < counts.size(); ++e) {
    if (counts[e] > 0)
      matmul_into(out.narrow(0, first, counts[e]), a.narrow(0, first, counts[e]),
                  b.select(0, static_cast<int64_t>(e)));
    first += counts[e];
  }
  return out;
}

at::Tensor grouped_outer_matmul(const at::Tensor& a, const at::Tensor& b, std::span<const int64_t> counts) {
  const at::Tensor out = at::empty({static_cast<int64_t>(counts.size()), a.size(1), b.size(1)}, a.options());
  int64_t first = 0;
  for (size_t e = 0; e < counts.size(); ++e) {
    const at::Tensor of_expert = out.select(0, static_cast<int64_t>(e));
    if (counts[e] > 0)
      matmul_into(of_expert, a.narrow(0, first, counts[e]).t(), b.narrow(0, first, counts[e]));
    else
      of_expert.zero_();
    first += counts[e];
  }
  return out;
}

}  // namespace hyperion::kernels
