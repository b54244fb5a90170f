#include "models/kernels/attention/sinks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/kernels.h"

namespace hyperion::kernels {
namespace {

// [heads] -> [1, heads, 1]
at::Tensor scores_of(const at::Tensor& sinks, const at::Tensor& lse) {
  return sinks.to(lse.scalar_type()).view({1, -1, 1});
}

}  // namespace

void add_sinks(const at::Tensor& output, const at::Tensor& lse, const at::Tensor& sinks) {
  if (!lse.defined())
    throw_config(
        "attention with sinks and documents has a GPU kernel for bfloat16 and heads of up to 256 only: the "
        "kernel for {} and heads of {} leaves no log-sum-exp of each query",
        c10::toString(output.scalar_type()), output.size(3));
  // One key whose value is 0. The zeros are one number, repeated by strides of 0 along all but the last.
  const at::Tensor value = at::zeros({output.size(3)}, output.options()).expand(output.sizes());
  table().merge_parts(output, lse, value, scores_of(sinks, lse).expand(lse.sizes()));
}

at::Tensor sinks_gradient(const at::Tensor& grad_output, const at::Tensor& output, const at::Tensor& lse,
                          const at::Tensor& sinks) {
  const at::Tensor weights = (scores_of(sinks, lse) - lse).exp_();  // of the sinks in the softmax
  const at::Tensor means = (grad_output.to(opmath_dtype(grad_output)) * output).sum(-1);
  return (weights * means).sum(at::OptionalIntArrayRef({0, 2})).neg_().to(sinks.scalar_type());
}

}  // namespace hyperion::kernels
