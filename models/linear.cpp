#include "models/linear.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "models/activation_checkpoint.h"
#include "models/float8/linear_matmuls.h"
#include "models/kernels/matmul.h"

namespace hyperion::models {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor as_rows(const Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

// The autograd node owns a copy of the layer, which shares its weight: the layer itself may move or end while
// the graph lives.
struct LayerOfNode : torch::CustomClassHolder {
  explicit LayerOfNode(const Linear& layer) : layer(layer) {}
  const Linear layer;
};

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& /*for autograd alone*/,
                        const Linear& layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = c10::IValue::make_capsule(c10::make_intrusive<LayerOfNode>(layer));
    const std::vector<int64_t>& weight_shape = layer.weight()->shape;
    SelectiveCheckpoint* checkpoint = SelectiveCheckpointScope::active();
    const bool save = checkpoint != nullptr && checkpoint->saves_next_matmul(weight_shape);
    return saved_or_computed(save, [&]() -> SelectiveCheckpoint::Results {
      std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
      shape.back() = weight_shape[0];
      return {layer.output(as_rows(x)).view(shape)};
    })[0];
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const Tensor x = context->get_saved_variables()[0];
    const auto node =
        c10::static_intrusive_pointer_cast<LayerOfNode>(context->saved_data["layer"].toCapsule());
    auto [grad_x, grad_weight] = node->layer.gradients(as_rows(grads[0]), as_rows(x));
    return {grad_x.view(x.sizes()), grad_weight, Tensor()};
  }
};

}  // namespace

Tensor Linear::forward(const Tensor& x) const {
  return LinearFunction::apply(x, weight_->weight, *this);
}

Tensor Linear::output(const Tensor& x) const {
  return float8_ ? float8_->output(x, *weight_) : kernels::matmul(x, weight_->weight.t());
}

LinearGradients Linear::gradients(const Tensor& grad, const Tensor& x) const {
  if (float8_) return float8_->gradients(grad, x, *weight_);
  return {kernels::matmul(grad, weight_->weight), kernels::matmul(grad.t(), x)};
}

}  // namespace hyperion::models
