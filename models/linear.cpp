#include "models/linear.h"

#include <torch/csrc/autograd/custom_function.h>

#include "models/kernels/matmul.h"
#include "models/recompute.h"

namespace hyperion {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class PlainStrategy : public LinearStrategy {
 public:
  Tensor forward(const Tensor& x, const Parameter& weight) const override {
    return kernels::matmul(x, weight.weight.t());
  }
  Gradients backward(const Tensor& grad, const Tensor& x, const Parameter& weight) const override {
    return {kernels::matmul(grad, weight.weight), kernels::matmul(grad.t(), x)};
  }
  bool couples_rows() const override { return false; }
};

Tensor as_rows(const Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

// The layer itself is reached through the node's own copies: what owns a unit may move while a graph lives.
struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor&, const Linear* layer) {
    context->save_for_backward({x});
    context->saved_data["parameter"] = reinterpret_cast<int64_t>(layer->weight().get());
    context->saved_data["strategy"] = reinterpret_cast<int64_t>(&layer->strategy());
    const Parameter& parameter = *layer->weight();
    RecomputeTape* tape = TapeScope::active();
    const bool keep = tape != nullptr && tape->keep_next_matmul(parameter.shape);
    return kept_or_computed(keep, [&]() -> RecomputeTape::Results {
      std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
      shape.back() = parameter.rows();
      return {layer->strategy().forward(as_rows(x), parameter).view(shape)};
    })[0];
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const Tensor x = context->get_saved_variables()[0];
    const auto* parameter = reinterpret_cast<const Parameter*>(context->saved_data["parameter"].toInt());
    const auto* strategy = reinterpret_cast<const LinearStrategy*>(context->saved_data["strategy"].toInt());
    auto [grad_x, grad_weight] = strategy->backward(as_rows(grads[0]), as_rows(x), *parameter);
    return {grad_x.view(x.sizes()), grad_weight, Tensor()};
  }
};

}  // namespace

std::shared_ptr<const LinearStrategy> plain_strategy() {
  static const auto plain = std::make_shared<const PlainStrategy>();
  return plain;
}

Tensor Linear::forward(const Tensor& x) const {
  return LinearFunction::apply(x, weight_->weight, this);
}

}  // namespace hyperion
