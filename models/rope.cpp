#include "models/rope.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>

#include <numbers>

namespace hyperion {

at::Tensor rope_frequencies(const ModelArgs& args) {
  const at::Tensor exponents = at::arange(0, args.head_dim, 2, at::kFloat) / args.head_dim;
  const at::Tensor frequencies = at::pow(args.rope_theta, exponents).reciprocal();
  if (!args.rope_scaling) return frequencies;
  constexpr double kFactor = 8, kLow = 1, kHigh = 4, kOriginalLength = 8192;
  const at::Tensor wavelengths = 2 * std::numbers::pi / frequencies;
  const at::Tensor stretched =
      at::where(wavelengths > kOriginalLength / kLow, frequencies / kFactor, frequencies);
  const at::Tensor blend = (kOriginalLength / wavelengths - kLow) / (kHigh - kLow);
  const at::Tensor blended = (1 - blend) * stretched / kFactor + blend * stretched;
  const at::Tensor between =
      (wavelengths >= kOriginalLength / kHigh).logical_and(wavelengths <= kOriginalLength / kLow);
  return at::where(between, blended, stretched);
}

}  // namespace hyperion
