#include "models/float8/quantize.h"

#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

namespace hyperion::float8 {
namespace {

constexpr double kEps = 1e-12;  // torchao's: keeps the scale of zeros finite

// The granularity with one scale for each index along `dim`.
Granularity scaled_along(int dim) {
  return dim == 0 ? Granularity::kRow : Granularity::kColumn;
}

at::Tensor amax_of(const at::Tensor& x, Granularity granularity) {
  if (granularity == Granularity::kTensor && x.numel() == 0) return at::zeros({}, x.options());
  std::optional<int64_t> dim;
  if (granularity != Granularity::kTensor) dim = granularity == Granularity::kRow ? 1 : 0;
  if (x.is_cuda())  // one kernel instead of three
    return at::linalg_vector_norm(x.detach(), std::numeric_limits<double>::infinity(),
                                  dim ? at::OptionalIntArrayRef(*dim) : std::nullopt,
                                  /*keepdim=*/dim.has_value());
  const auto [low, high] = at::aminmax(x.detach(), dim, /*keepdim=*/dim.has_value());
  return at::maximum(low.neg(), high);
}

std::tuple<at::Tensor, at::Tensor> plain_scales(const at::Tensor& amax, double largest, bool power_of_two) {
  at::Tensor scale = (largest / amax.to(at::kDouble).clamp_min(kEps)).to(at::kFloat);
  if (power_of_two) scale.log2_().floor_().exp2_();
  return {scale, scale.reciprocal()};
}

}  // namespace

at::Tensor amax(const at::Tensor& x, Granularity granularity, const PartOf& part) {
  const at::Tensor own = amax_of(x, granularity);
  const bool divided = granularity == Granularity::kTensor || granularity == scaled_along(1 - part.dim);
  if (part.group == nullptr || !divided) return own;
  const at::Tensor largest = own.to(at::kFloat).contiguous();
  part.group->start_all_reduce_max(largest).wait();
  return largest;
}

at::Tensor amaxes(const std::vector<at::Tensor>& matrices, at::Device device) {
  std::vector<at::Tensor> on_gpu, all;
  for (const at::Tensor& x : matrices)
    if (x.numel() > 0 && x.is_cuda()) on_gpu.push_back(x.detach());
  std::vector<at::Tensor> found;
  if (!on_gpu.empty()) found = at::_foreach_norm(on_gpu, std::numeric_limits<double>::infinity());
  size_t next = 0;
  for (const at::Tensor& x : matrices)
    all.push_back(x.numel() > 0 && x.is_cuda() ? found[next++] : amax(x, Granularity::kTensor));
  return at::stack(all).to(device);
}

// An operator for the reason that cast() is one.
TORCH_LIBRARY_FRAGMENT(hyperion, library) {
  library.def("float8_scales(Tensor amax, float largest, bool power_of_two) -> (Tensor, Tensor)",
              torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, plain_scales));
}

Scales scales_of(const at::Tensor& amax, at::ScalarType dtype, bool power_of_two) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("hyperion::float8_scales", "")
                             .typed<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, double, bool)>();
  const at::AutoDispatchBelowAutograd no_gradients;
  auto [scale, inverse] = op.call(amax, largest_of(dtype), power_of_two);
  return {std::move(scale), std::move(inverse)};
}

at::Tensor saturating_cast(const at::Tensor& x, const at::Tensor& scale, at::ScalarType dtype) {
  const double limit = largest_of(dtype);
  return x.detach().to(at::kFloat).mul(scale).clamp_(-limit, limit).to(dtype);
}

Quantized quantize(const at::Tensor& x, const Scaling& scaling, const PartOf& part) {
  const auto [scale, inverse] =
      scales_of(amax(x, scaling.granularity, part), scaling.dtype, scaling.power_of_two);
  return {saturating_cast(x, scale, scaling.dtype), scale, inverse};
}

at::Tensor dequantize(const Quantized& x) {
  return x.values.to(at::kFloat).div_(x.scale);
}

}  // namespace hyperion::float8
