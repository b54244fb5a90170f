// Linear is a linear layer, with or without a bias. Its three matrix products (forward, dgrad, wgrad) run in
// the operands' dtype or in FP8; the bias is added in the operands' dtype. The weight keeps name, shape and
// dtype either way, so checkpoints and sharding do not depend on it. models/layers/linear_node.h makes layers
// differentiable.
#pragma once

#include <memory>
#include <utility>

#include <ATen/core/Tensor.h>

#include "base/exchange.h"
#include "base/parameter.h"
#include "models/float8/operand.h"

namespace hyperion::float8 {
class LinearMatmuls;
}

namespace hyperion::models {

class Linear {
 public:
  // float8: null for products in the operands' dtype. tp_group: shards the weight (Parameter::split); null:
  // the weight is replicated. chunked: see ParallelDims::chunked. bias: null if the layer has none; sharded
  // if the weight's rows are, else replicated.
  explicit Linear(ParameterPtr weight, std::shared_ptr<const float8::LinearMatmuls> float8 = nullptr,
                  Exchange* tp_group = nullptr, bool chunked = false, ParameterPtr bias = nullptr)
      : weight_(std::move(weight)),
        bias_(std::move(bias)),
        float8_(std::move(float8)),
        tp_group_(tp_group),
        chunked_(chunked) {}

  const ParameterPtr& weight() const { return weight_; }  // [out, in]
  const ParameterPtr& bias() const { return bias_; }      // [out]; null without
  void set_float8(std::shared_ptr<const float8::LinearMatmuls> float8);
  const float8::LinearMatmuls* float8() const { return float8_.get(); }
  Exchange* tp_group() const { return tp_group_; }
  bool chunked() const { return chunked_ && tp_group_ != nullptr; }

  // The products with the local shard of the weight, without autograd. x [m, in], grad [m, out].
  at::Tensor output(Operand& x) const;             // x weight^T + bias -> [m, out]
  at::Tensor product(Operand& x) const;            // x weight^T -> [m, out]
  at::Tensor input_gradient(Operand& grad) const;  // dgrad: grad weight -> [m, in]
  // wgrad: grad^T x -> [out, in], in Parameter::gradient_dtype if the product supports it, else in the
  // compute dtype.
  at::Tensor weight_gradient(Operand& grad, Operand& x) const;
  // Adds the wgrad of these rows to `sum`, [out, in] in fp32 (fp64 for fp64). The first call creates `sum`.
  // Layers that couple rows do not have it.
  void add_weight_gradient(at::Tensor& sum, const Operand& grad, const Operand& x) const;
  // Returns whether the product of add_weight_gradient() accumulates into `sum` itself, on a GPU. `sum` may
  // be undefined.
  bool multiplies_into(const at::Tensor& sum) const;
  // Returns the sum over the rows of grad [m, out], in Parameter::gradient_dtype of the bias; undefined
  // without a bias or if it is frozen.
  at::Tensor bias_gradient(const at::Tensor& grad) const;

  // Cast the operand for output() or input_gradient(), before these are called with parts of it.
  void prepare_input(Operand& x) const;
  void prepare_gradient(Operand& grad) const;

  // Returns whether a row's result depends on the other rows of the call, because FP8 rows share scales. Such
  // a layer must not run in chunks.
  bool couples_rows() const { return float8_ != nullptr; }

 private:
  ParameterPtr weight_, bias_;
  std::shared_ptr<const float8::LinearMatmuls> float8_;
  Exchange* tp_group_;
  bool chunked_;
};

// Adds a gradient of any dtype to the parameter's .grad().
void accumulate_gradient(const Parameter& parameter, const at::Tensor& gradient);

}  // namespace hyperion::models
