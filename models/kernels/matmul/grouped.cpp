#include "models/kernels/matmul/grouped.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/empty.h>

#include "base/device/device_library.h"
#include "models/kernels/matmul/matmul.h"

namespace hyperion::kernels {
namespace {

constexpr int64_t kMaxGroups = 1023;  // of libtorch's product

}  // namespace

const char* why_not_at_once(at::ScalarType dtype, int compute_capability, const GroupedShape& shape) {
  const int generation = compute_capability / 10;
  if (dtype != at::kBFloat16) return "libtorch's grouped product is one of bfloat16";
  if (generation != 9 && generation != 10)
    return "libtorch's grouped product is one of GPUs of compute capability 9.0 and 10.0";
  if (shape.k % kGroupUnit != 0 || shape.j % kGroupUnit != 0)
    return "libtorch's grouped product asks for widths that are multiples of 8";
  return shape.groups > kMaxGroups ? "libtorch's grouped product takes at most 1,023 experts" : nullptr;
}

bool multiplies_groups_at_once(const at::Tensor& a, const GroupedShape& shape) {
  return a.is_cuda() && why_not_at_once(a.scalar_type(), device_library().compute_capability(a.get_device()),
                                        shape) == nullptr;
}

at::Tensor grouped_matmul(const at::Tensor& a, const at::Tensor& b, const RowGroups& groups) {
  if (groups.ends.defined()) return at::_grouped_mm(a, b, groups.ends);
  const at::Tensor out = at::empty({a.size(0), b.size(2)}, a.options());
  int64_t first = 0;
  for (size_t e = 0; e < groups.counts.size(); ++e) {
    const int64_t count = groups.counts[e];
    if (count > 0)
      matmul_into(out.narrow(0, first, count), a.narrow(0, first, count),
                  b.select(0, static_cast<int64_t>(e)));
    first += count;
  }
  return out;
}

at::Tensor grouped_outer_matmul(const at::Tensor& a, const at::Tensor& b, const RowGroups& groups) {
  if (groups.ends.defined()) return at::_grouped_mm(a.t(), b, groups.ends);
  const at::Tensor out =
      at::empty({static_cast<int64_t>(groups.counts.size()), a.size(1), b.size(1)}, a.options());
  int64_t first = 0;
  for (size_t e = 0; e < groups.counts.size(); ++e) {
    const int64_t count = groups.counts[e];
    const at::Tensor of_expert = out.select(0, static_cast<int64_t>(e));
    if (count > 0)
      matmul_into(of_expert, a.narrow(0, first, count).t(), b.narrow(0, first, count));
    else
      of_expert.zero_();
    first += count;
  }
  return out;
}

}  // namespace hyperion::kernels
