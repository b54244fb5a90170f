#include "models/float8/scaled_matmul.h"

#include <map>
#include <mutex>
#include <string>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <torch/library.h>

#include "base/error.h"
#include "models/float8/blocks.h"
#include "models/kernels/matmul/matmul.h"

namespace hyperion::float8 {
namespace {

bool row_major(const at::Tensor& x) {
  return x.stride(1) == 1 && x.stride(0) == x.size(1);
}

void check_operands(const at::Tensor& a, const at::Tensor& b) {
  const bool good = row_major(a) && row_major(b.t()) && a.size(1) % 16 == 0 && b.size(1) % 16 == 0 &&
                    !(a.scalar_type() == kE5m2 && b.scalar_type() == kE5m2);
  if (!good)
    throw_bug(
        "FP8 product of [{}, {}] (strides {}, {}) and [{}, {}] (strides {}, {}): expected row-major times "
        "column-major with inner and last extent divisible by 16, one operand at most in e5m2",
        a.size(0), a.size(1), a.stride(0), a.stride(1), b.size(0), b.size(1), b.stride(0), b.stride(1));
}

at::Tensor multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& inverse_a,
                    const at::Tensor& inverse_b, at::ScalarType out, bool fast_accumulate) {
  return at::_scaled_mm(a, b, inverse_a, inverse_b, /*bias=*/std::nullopt, /*scale_result=*/std::nullopt, out,
                        fast_accumulate);
}

at::Tensor inverse_of(const Quantized& x) {
  return x.inverse.defined() ? x.inverse : x.scale.reciprocal();
}

// The scale of operands that are rescaled after their product: made once for a device, not for each product.
at::Tensor one_on(at::Device device) {
  static std::mutex mutex;
  static auto* const ones = new std::map<std::string, at::Tensor>;  // CUDA may be gone when a process ends
  const std::lock_guard lock(mutex);
  at::Tensor& one = (*ones)[device.str()];
  if (!one.defined()) one = at::ones({}, at::TensorOptions(at::kFloat).device(device));
  return one;
}

at::Tensor& plain_rescale_in_place(at::Tensor& product, const at::Tensor& row, const at::Tensor& column) {
  return product.mul_(row).mul_(column);
}

}  // namespace

// An operator for the reason that cast() is one.
TORCH_LIBRARY_FRAGMENT(hyperion, library) {
  library.def("float8_rescale_(Tensor(a!) product, Tensor row, Tensor column) -> Tensor(a!)",
              torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, plain_rescale_in_place));
}

at::Tensor& rescale_in_place(at::Tensor& product, const at::Tensor& row, const at::Tensor& column) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("hyperion::float8_rescale_", "")
                             .typed<at::Tensor&(at::Tensor&, const at::Tensor&, const at::Tensor&)>();
  const at::AutoDispatchBelowAutograd no_gradients;
  return op.call(product, row, column);
}

at::Tensor scaled_matmul(const Quantized& a, const Quantized& b, at::ScalarType out, bool fast_accumulate,
                         Gemm gemm) {
  const bool blocks = a.scale.scalar_type() == kE8m0;
  if (gemm == Gemm::kEmulated)
    return blocks ? kernels::matmul(dequantize_blocks(a, out), dequantize_blocks(b, out))
                  : at::mm(dequantize(a), dequantize(b)).to(out);
  check_operands(a.values, b.values);
  if (blocks)
    return multiply(a.values, b.values, scales_for_cublas(a.scale), scales_for_cublas(b.scale.t()),
                    at::kBFloat16, /*fast_accumulate=*/false)
        .to(out);
  const at::Tensor inverse_a = inverse_of(a), inverse_b = inverse_of(b);
  const bool whole_a = a.scale.dim() == 0, whole_b = b.scale.dim() == 0;
  if (whole_a && whole_b) return multiply(a.values, b.values, inverse_a, inverse_b, out, fast_accumulate);
  if (fast_accumulate && !whole_a && !whole_b)  // the row-wise kernel writes bf16 only
    return multiply(a.values, b.values, inverse_a, inverse_b, at::kBFloat16, /*fast_accumulate=*/true)
        .to(out);
  const at::Tensor one = one_on(a.scale.device());
  at::Tensor product = multiply(a.values, b.values, one, one, at::kBFloat16, fast_accumulate);
  return rescale_in_place(product, inverse_a, inverse_b).to(out);
}

}  // namespace hyperion::float8
