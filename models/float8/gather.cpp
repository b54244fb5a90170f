#include "models/float8/gather.h"

#include <ATen/ops/stack.h>

#include "models/float8/cast.h"

namespace hyperion::float8 {

at::Tensor gather_statistics(const std::vector<at::Tensor>& masters, at::Device device) {
  std::vector<at::Tensor> largest;
  for (const at::Tensor& master : masters) largest.push_back(amax(master, Granularity::kTensor));
  return at::stack(largest).to(device);
}

at::Tensor gather_scales(const at::Tensor& statistics) {
  return scales_of(statistics, kE4m3, /*power_of_two=*/false).scale;
}

void gather_encode(const at::Tensor& master, const at::Tensor& scale, const at::Tensor& out) {
  out.copy_(cast(master, scale, /*column_scale=*/{}, kE4m3).rows);
}

}  // namespace hyperion::float8
