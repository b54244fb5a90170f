// Losses of a model of a test, and how they change with its weights.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include "models/transformer.h"

namespace hyperion::models {

// The same values whenever it is called, in any dtype.
inline void give_weights(const Transformer& model, at::ScalarType dtype, double spread) {
  at::manual_seed(7);
  for (const ParameterPtr& parameter : model.parameters()) {
    parameter->weight = (at::randn(parameter->shape, at::kDouble) * spread).to(dtype);
    parameter->weight.requires_grad_();
  }
}

// Loss of the whole model, gradients into the weights' .grad().
inline double loss_and_backward(const Transformer& model, const at::Tensor& tokens,
                                const at::Tensor& labels) {
  const SequenceContext context = model.context(tokens.size(1), at::kCPU);
  at::Tensor x = model.embedding().forward(tokens);
  for (const TransformerBlock& block : model.blocks()) x = block.forward(x, context);
  auto [loss, grad, z_loss] = model.head().loss_and_grad(x.detach(), labels, at::ones({}, at::kDouble));
  torch::autograd::backward({x}, {grad});
  return loss.item<double>();
}

// The derivative of the loss when a weight moves along `direction`, by a central difference.
inline double numeric_derivative(const Transformer& model, const ParameterPtr& parameter,
                                 const at::Tensor& direction, double step, const at::Tensor& tokens,
                                 const at::Tensor& labels) {
  const auto shifted = [&](double by) {
    at::NoGradGuard no_grad;
    parameter->weight.add_(direction, by);
    at::AutoGradMode grad_mode(true);
    return loss_and_backward(model, tokens, labels);
  };
  const double up = shifted(step), down = shifted(-2 * step);
  shifted(step);
  return (up - down) / (2 * step);
}

}  // namespace hyperion::models
