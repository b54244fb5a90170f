// Adam's and AdamW's update of many parameters on a CPU, in one pass: gradients are divided, weights and
// moments updated and the weights' copies in another dtype written while they are in the cache.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace hyperion::kernels {

// Tensors that are updated together; entry i of each list belongs to the same parameter, has as many elements
// and is contiguous. fp32 but for `copies`, which are fp32 or bf16, or undefined where there is none.
struct AdamTensors {
  std::vector<at::Tensor> weights, grads, exp_avgs, exp_avg_sqs, copies;
};

struct AdamStep {
  double lr, beta1, beta2, eps, weight_decay;
  bool decoupled;        // AdamW: decay shrinks the weight; else it is added to the gradient
  double updates;        // this one included: 1, 2, ...
  double divisor = 1.0;  // of the gradients
};

// Whether all of them are such tensors, on a CPU.
bool takes_adam_update(const AdamTensors& tensors);
using AdamUpdate = void(const AdamTensors& tensors, const AdamStep& step);
namespace cpu {
AdamUpdate adam_update;
}

}  // namespace hyperion::kernels
