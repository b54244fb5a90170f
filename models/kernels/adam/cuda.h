// Calls adam/cuda.cuh with tensors.
#pragma once

#include <algorithm>

#include "models/kernels/adam/rounded.h"
#include "models/kernels/adam/task.h"
#include "models/kernels/common/tensors.h"

namespace hyperion::kernels::cuda {

inline const float* scalar_of(const Tensor& x, const Tensor& like, const char* what) {
  if (!x.defined()) return nullptr;
  require_alike(x, like, what);
  require_numbers(x, 1, what);
  return x.const_data_ptr<float>();
}
inline uint16_t* bf16_bits(const Tensor& x, int64_t numel, const char* what) {
  require_numbers(x, numel, what);
  TORCH_CHECK(x.scalar_type() == at::kBFloat16 && x.is_contiguous(), what, ": expected contiguous bf16");
  return static_cast<uint16_t*>(x.mutable_data_ptr());
}
inline float* fp32_of(const Tensor& x, int64_t numel, const char* what) {
  require_numbers(x, numel, what);
  TORCH_CHECK(x.is_contiguous(), what, ": expected no gaps");
  return x.mutable_data_ptr<float>();
}

// Launches the tensors that tensor(i) describes, kTensorsOfLaunch at a time; `task` has all else.
template <typename Launch, typename F>
void launch_updates(const Launch& launch, RoundedUpdateTask task, size_t tensors, const F& tensor) {
  for (size_t begin = 0; begin < tensors; begin += kTensorsOfLaunch) {
    task.count = 0;
    for (size_t i = begin; i < std::min(tensors, begin + kTensorsOfLaunch); ++i) {
      RoundedTensor& added = task.tensors[task.count] = tensor(i);
      const int64_t blocks = (added.numel + kElementsOfBlock - 1) / kElementsOfBlock;
      task.first_block[task.count + 1] = task.first_block[task.count] + static_cast<int>(blocks);
      ++task.count;
    }
    launch(task, Element::kFloat);
  }
}

template <typename Launch>
void rounded_adam(const Launch& launch, const RoundedAdamStep& step, const RoundedAdamTensors& tensors) {
  const Tensor& like = tensors.weights.front();
  RoundedUpdateTask task;
  task.updates = scalar_of(step.updates, like, "rounded_adam: updates");
  task.skip = scalar_of(step.skip, like, "rounded_adam: skip");
  task.divisor = scalar_of(step.divisor, like, "rounded_adam: divisor");
  task.lr = step.lr;
  task.beta1 = step.beta1;
  task.beta2 = step.beta2;
  task.shrink = static_cast<float>(step.decoupled ? 1 - step.lr * step.weight_decay : 1);
  task.added_decay = static_cast<float>(step.decoupled ? 0 : step.weight_decay);
  task.eps = static_cast<float>(step.eps);
  launch_updates(launch, task, tensors.weights.size(), [&](size_t i) {
    const int64_t numel = tensors.weights[i].numel();
    const Tensor& copy = tensors.copies[i];
    return RoundedTensor{.weight = fp32_of(tensors.weights[i], numel, "rounded_adam: weights"),
                         .grad = fp32_of(tensors.grads[i], numel, "rounded_adam: grads"),
                         .first = bf16_bits(tensors.exp_avgs[i], numel, "rounded_adam: exp_avgs"),
                         .second = bf16_bits(tensors.exp_avg_sqs[i], numel, "rounded_adam: exp_avg_sqs"),
                         .copy = copy.defined() ? bf16_bits(copy, numel, "rounded_adam: copies") : nullptr,
                         .numel = numel,
                         .key = tensors.keys[i],
                         .indices = tensors.indices[i]};
  });
}

template <typename Launch>
void rounded_momentum(const Launch& launch, const RoundedMomentumStep& step,
                      const RoundedMomentumTensors& tensors) {
  const Tensor& like = tensors.grads.front();
  RoundedUpdateTask task;
  task.updates = scalar_of(step.updates, like, "rounded_momentum: updates");
  task.skip = scalar_of(step.skip, like, "rounded_momentum: skip");
  task.beta1 = step.momentum;
  task.nesterov = step.nesterov;
  launch_updates(launch, task, tensors.grads.size(), [&](size_t i) {
    const int64_t numel = tensors.grads[i].numel();
    return RoundedTensor{.grad = fp32_of(tensors.grads[i], numel, "rounded_momentum: grads"),
                         .first = bf16_bits(tensors.momenta[i], numel, "rounded_momentum: momenta"),
                         .numel = numel,
                         .key = tensors.keys[i],
                         .indices = tensors.indices[i]};
  });
}

}  // namespace hyperion::kernels::cuda
