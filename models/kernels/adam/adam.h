// The Adam and AdamW update of many parameters on a CPU, in one pass: while they are in the cache, gradients
// are divided, weights and moments are updated, and copies of the weights in another dtype are written.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace hyperion::kernels {

// The tensors of one update. Entries i of all lists belong to one parameter; they are contiguous and have the
// same number of elements. They are fp32, except that `copies` are fp32, bf16 or undefined.
struct AdamTensors {
  std::vector<at::Tensor> weights, grads, exp_avgs, exp_avg_sqs, copies;
};

struct AdamStep {
  double lr, beta1, beta2, eps, weight_decay;
  bool decoupled;        // AdamW: decay shrinks the weight; Adam: it is added to the gradient
  double updates;        // the number of updates, with this one: 1, 2, ...
  double divisor = 1.0;  // divides the gradients
};

// Returns whether the CPU form takes these tensors.
bool takes_adam_update(const AdamTensors& tensors);
using AdamUpdate = void(const AdamTensors& tensors, const AdamStep& step);
namespace cpu {
AdamUpdate adam_update;
}

}  // namespace hyperion::kernels
