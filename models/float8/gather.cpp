#include "models/float8/gather.h"

#include <limits>
#include <utility>

#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "models/float8/cast.h"

namespace hyperion::float8 {

at::Tensor gather_statistics(const std::vector<at::Tensor>& masters, at::Device device) {
  std::vector<at::Tensor> largest, filled;
  for (const at::Tensor& master : masters)
    if (master.numel() > 0 && master.is_cuda()) filled.push_back(master.detach());
  std::vector<at::Tensor> found;  // a few kernels for all of them, where a GPU has them
  if (!filled.empty()) found = at::_foreach_norm(filled, std::numeric_limits<double>::infinity());
  size_t next = 0;
  for (const at::Tensor& master : masters)
    largest.push_back(master.numel() > 0 && master.is_cuda() ? found[next++]
                                                             : amax(master, Granularity::kTensor));
  return at::stack(largest).to(device);
}

std::pair<at::Tensor, at::Tensor> gather_scales(const at::Tensor& statistics) {
  Scales scales = scales_of(statistics, kE4m3, /*power_of_two=*/false);
  return {std::move(scales.scale), std::move(scales.inverse)};
}

void gather_encode(const at::Tensor& master, const at::Tensor& scale, const at::Tensor& out) {
  cast_into(out, master, scale);
}

}  // namespace hyperion::float8
