// A linear layer without bias, and the ways it may multiply. The way is a strategy of the layer: its weight
// keeps name, shape and dtype whatever the strategy, so that checkpoints and sharding never hear of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>

#include "base/parameter.h"

namespace hyperion {

// Three products of one layer, on rows: x [m, in], weight [out, in], grad [m, out]. Autograd is off in all of
// them.
class LinearStrategy {
 public:
  virtual ~LinearStrategy() = default;

  // x times weight transposed -> [m, out] in x's dtype.
  virtual at::Tensor forward(const at::Tensor& x, const Parameter& weight) const = 0;

  struct Gradients {
    at::Tensor x;       // grad times weight -> [m, in]
    at::Tensor weight;  // grad transposed times x -> [out, in]; both in grad's dtype
  };
  virtual Gradients backward(const at::Tensor& grad, const at::Tensor& x, const Parameter& weight) const = 0;

  // Whether a row's results depend on the other rows, so that a layer must not be fed in chunks.
  virtual bool couples_rows() const = 0;
};

// Products in the operands' dtype.
std::shared_ptr<const LinearStrategy> plain_strategy();

class Linear {
 public:
  explicit Linear(ParameterPtr weight, std::shared_ptr<const LinearStrategy> strategy = plain_strategy())
      : weight_(std::move(weight)), strategy_(std::move(strategy)) {}

  const ParameterPtr& weight() const { return weight_; }
  const LinearStrategy& strategy() const { return *strategy_; }
  void set_strategy(std::shared_ptr<const LinearStrategy> strategy) { strategy_ = std::move(strategy); }

  // x [..., in] -> [..., out], differentiable; consults the active RecomputeTape (models/recompute.h).
  at::Tensor forward(const at::Tensor& x) const;

 private:
  ParameterPtr weight_;
  std::shared_ptr<const LinearStrategy> strategy_;
};

}  // namespace hyperion
