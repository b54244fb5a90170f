#include "models/float8/quantize.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

namespace hyperion::float8 {
namespace {

constexpr double kEps = 1e-12;  // torchao's: keeps the scale of zeros finite

double largest(at::ScalarType dtype) {
  return dtype == kE5m2 ? 57344.0 : 448.0;
}

}  // namespace

at::Tensor amax(const at::Tensor& x, Granularity granularity) {
  if (granularity == Granularity::kTensor && x.numel() == 0) return at::zeros({}, x.options());
  std::optional<int64_t> dim;
  if (granularity != Granularity::kTensor) dim = granularity == Granularity::kRow ? 1 : 0;
  const auto [low, high] = at::aminmax(x.detach(), dim, /*keepdim=*/dim.has_value());
  return at::maximum(low.neg(), high);
}

at::Tensor scale_of(const at::Tensor& amax, at::ScalarType dtype, bool power_of_two) {
  const at::Tensor scale = (largest(dtype) / amax.to(at::kDouble).clamp_min(kEps)).to(at::kFloat);
  return power_of_two ? scale.log2().floor_().exp2_() : scale;
}

at::Tensor saturating_cast(const at::Tensor& x, const at::Tensor& scale, at::ScalarType dtype) {
  const double limit = largest(dtype);
  return x.detach().to(at::kFloat).mul(scale).clamp_(-limit, limit).to(dtype);
}

Quantized quantize(const at::Tensor& x, const Scaling& scaling) {
  const at::Tensor scale = scale_of(amax(x, scaling.granularity), scaling.dtype, scaling.power_of_two);
  return {saturating_cast(x, scale, scaling.dtype), scale};
}

at::Tensor dequantize(const Quantized& x) {
  return x.values.to(at::kFloat).div_(x.scale);
}

}  // namespace hyperion::float8
