// RMSNorm as a layer: of the residual stream, together with the sum that makes it, or of anything else.
#pragma once

#include <string>
#include <utility>

#include "base/parameter.h"
#include "models/layers/ops.h"

namespace hyperion::models {

class Norm {
 public:
  // weight: [width]. consumers: layers that read the norm of the stream, each of which is given it as a
  // tensor of its own.
  Norm(ParameterPtr weight, double eps, int64_t consumers = 1)
      : weight_(std::move(weight)), eps_(eps), consumers_(consumers) {}

  at::Tensor forward(const at::Tensor& x) const { return ops::rms_norm(x, weight_->weight, eps_); }
  // The stream and its norm.
  ops::SumAndNorm of_residual(const at::Tensor& residual) const {
    return ops::rms_norm_of_residual(residual, weight_->weight, eps_, consumers_);
  }
  // stream + added and the norm of that sum, by one kernel.
  ops::SumAndNorm of_sum(const at::Tensor& stream, const at::Tensor& added) const {
    return ops::add_rms_norm(added, stream, weight_->weight, eps_, consumers_);
  }

  const ParameterPtr& weight() const { return weight_; }

 private:
  ParameterPtr weight_;
  double eps_;
  int64_t consumers_;
};

}  // namespace hyperion::models
