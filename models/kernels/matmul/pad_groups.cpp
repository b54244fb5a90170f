#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/where.h>

#include "models/kernels/matmul/grouped.h"

namespace hyperion::kernels {

PaddedGroups pad_groups(const at::Tensor& counts, int64_t rows, int64_t unit) {
  const int64_t groups = counts.size(0);
  const at::Tensor sizes = counts.add(unit - 1).floor_divide_(unit).clamp_min_(1).mul_(unit);
  const at::Tensor ends = sizes.cumsum(0), starts = ends - sizes;
  PaddedGroups padded{.rows = padded_rows(rows, groups, unit)};
  padded.ends = ends.to(at::kInt);
  padded.shift = starts - (counts.cumsum(0) - counts);
  const at::Tensor behind = (starts + counts).unsqueeze(1) + at::arange(unit, counts.options());
  padded.padding = at::where(behind < ends.unsqueeze(1), behind, padded.rows - 1).flatten();
  return padded;
}

}  // namespace hyperion::kernels
