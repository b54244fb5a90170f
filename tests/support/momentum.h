// An optimizer of the tests' own: gradient descent with one momentum, in bf16, of matrices alone. Nothing but
// optim::Optimizer knows of it.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "trainer/optim/optimizer.h"

namespace hyperion::test {

class Momentum final : public optim::Optimizer {
 public:
  explicit Momentum(const std::vector<parallel::ShardedParameterPtr>& parameters)
      : Optimizer(parameters), parameters_(parameters) {
    for (const parallel::ShardedParameterPtr& parameter : parameters)
      add_states(kinds_of(parameter->parameter()), parameter->master());
  }

  void step(double lr, const at::Tensor& skip, const std::optional<at::Tensor>& /*divisor*/) override {
    const at::NoGradGuard no_grad;
    step_.add_(1 - skip);
    if (skip.item<float>() != 0) return;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (!parameters_[i]->parameter().trainable) continue;
      const parallel::ShardedParameter& parameter = *parameters_[i];
      at::Tensor update = parameter.grad();
      if (!states(i).empty()) update = states(i)[0].mul_(0.5).add_(update);
      parameter.master().sub_(update, lr);
      if (parameter.has_separate_compute_shard()) parameter.compute_shard().copy_(parameter.master());
    }
  }
  std::vector<std::pair<const char*, checkpoint::Object>> settings(const Parameter&) const override {
    return {{"momentum", 0.5}};
  }

 private:
  std::vector<optim::StateKind> kinds_of_trainable(const Parameter& parameter) const override {
    if (parameter.shape.size() < 2) return {};
    return {{"momentum_buffer", at::kBFloat16}};
  }

  std::vector<parallel::ShardedParameterPtr> parameters_;
};

}  // namespace hyperion::test
