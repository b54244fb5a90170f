// Norm is the RMSNorm layer. On the residual stream it is fused with the residual sum before it.
#pragma once

#include <string>
#include <utility>

#include "base/parameter.h"
#include "models/layers/ops.h"

namespace hyperion::models {

class Norm {
 public:
  // weight: [width]. consumers: the number of layers that read the norm of the stream; each gets a tensor of
  // its own (see ops::SumAndNorm).
  Norm(ParameterPtr weight, double eps, int64_t consumers = 1)
      : weight_(std::move(weight)), eps_(eps), consumers_(consumers) {}

  at::Tensor forward(const at::Tensor& x) const { return ops::rms_norm(x, weight_->weight, eps_); }
  // Returns the stream and its norm.
  ops::SumAndNorm norm_of_stream(const at::Tensor& stream) const {
    return ops::rms_norm_of_residual(stream, weight_->weight, eps_, consumers_);
  }
  // Returns stream + added and the norm of the sum, from one kernel.
  ops::SumAndNorm add_and_norm(const at::Tensor& stream, const at::Tensor& added) const {
    return ops::add_rms_norm(added, stream, weight_->weight, eps_, consumers_);
  }

  const ParameterPtr& weight() const { return weight_; }

 private:
  ParameterPtr weight_;
  double eps_;
  int64_t consumers_;
};

}  // namespace hyperion::models
