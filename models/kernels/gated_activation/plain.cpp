#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>

#include "models/kernels/gated_activation/gated_activation.h"

namespace hyperion::kernels::plain {
namespace {

using at::Tensor;
using models::Activation;

// A function has value(x), and the gradient of x from that of the value.
template <Activation>
struct Function;
template <>
struct Function<Activation::kSilu> {
  static Tensor value(const Tensor& x) { return at::silu(x); }
  static Tensor gradient(const Tensor& grad, const Tensor& x) { return at::silu_backward(grad, x); }
};
template <>
struct Function<Activation::kGeluTanh> {
  static Tensor value(const Tensor& x) { return at::gelu(x, "tanh"); }
  static Tensor gradient(const Tensor& grad, const Tensor& x) { return at::gelu_backward(grad, x, "tanh"); }
};

}  // namespace

Tensor gated_activation(const Tensor& gate, const Tensor& up, Activation activation) {
  return models::with_activation(activation, [&](auto act) { return Function<act>::value(gate).mul_(up); });
}

std::pair<Tensor, Tensor> gated_activation_backward(const Tensor& grad, const Tensor& gate, const Tensor& up,
                                                    Activation activation) {
  return models::with_activation(activation, [&](auto act) {
    return std::pair(Function<act>::gradient(grad * up, gate), Function<act>::value(gate).mul_(grad));
  });
}

}  // namespace hyperion::kernels::plain
