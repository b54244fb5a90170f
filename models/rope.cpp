#include "models/rope.h"

#include <numbers>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>

namespace hyperion::models {

at::Tensor rope_frequencies(const ModelArgs& args) {
  const at::Tensor exponents = at::arange(0, args.head_dim, 2, at::kFloat) / args.head_dim;
  const at::Tensor frequencies = at::pow(args.rope_theta, exponents).reciprocal();
  if (!args.rope_scaling) return frequencies;
  const double factor = args.rope_factor, low = args.rope_low_freq_factor, high = args.rope_high_freq_factor;
  const double length = static_cast<double>(args.rope_original_length);
  const at::Tensor wavelengths = 2 * std::numbers::pi / frequencies;
  const at::Tensor stretched = at::where(wavelengths > length / low, frequencies / factor, frequencies);
  const at::Tensor blend = (length / wavelengths - low) / (high - low);
  const at::Tensor blended = (1 - blend) * stretched / factor + blend * stretched;
  const at::Tensor between = (wavelengths >= length / high).logical_and(wavelengths <= length / low);
  return at::where(between, blended, stretched);
}

}  // namespace hyperion::models
