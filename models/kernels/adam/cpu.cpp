#include <algorithm>
#include <cmath>

#include <ATen/record_function.h>

#include "base/device/parallel_for.h"
#include "models/kernels/adam/adam.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/common/rows.h"

namespace hyperion::kernels {
namespace {

constexpr int64_t kAdamBlock = 16384;  // elements of one tensor that a thread updates at a time

rows::AdamNumbers numbers_of(const AdamStep& step) {
  const double correction1 = 1 - std::pow(step.beta1, step.updates),
               correction2 = 1 - std::pow(step.beta2, step.updates);
  return {.divisor = static_cast<float>(step.divisor),
          .shrink = static_cast<float>(step.decoupled ? 1 - step.lr * step.weight_decay : 1),
          .added_decay = static_cast<float>(step.decoupled ? 0 : step.weight_decay),
          .beta1 = static_cast<float>(step.beta1),
          .rest1 = static_cast<float>(1 - step.beta1),
          .beta2 = static_cast<float>(step.beta2),
          .rest2 = static_cast<float>(1 - step.beta2),
          .root_of_correction2 = static_cast<float>(std::sqrt(correction2)),
          .eps = static_cast<float>(step.eps),
          .step_size = static_cast<float>(step.lr / correction1)};
}

bool is_fp32(const at::Tensor& t) {
  return t.is_cpu() && t.scalar_type() == at::kFloat && t.is_contiguous();
}

}  // namespace

bool takes_adam_update(const AdamTensors& tensors) {
  const auto all = [](const std::vector<at::Tensor>& list) { return std::ranges::all_of(list, is_fp32); };
  return all(tensors.weights) && all(tensors.grads) && all(tensors.exp_avgs) && all(tensors.exp_avg_sqs) &&
         std::ranges::all_of(tensors.copies, [](const at::Tensor& copy) {
           return !copy.defined() || (copy.is_cpu() && is_fused_dtype(copy) && copy.is_contiguous());
         });
}

void cpu::adam_update(const AdamTensors& tensors, const AdamStep& step) {
  RECORD_FUNCTION("hyperion::adam", std::vector<c10::IValue>());
  const rows::AdamNumbers numbers = numbers_of(step);
  struct Block {
    size_t tensor;
    int64_t first, count;
  };
  std::vector<Block> blocks;
  for (size_t i = 0; i < tensors.weights.size(); ++i)
    for (int64_t first = 0; first < tensors.weights[i].numel(); first += kAdamBlock)
      blocks.push_back({i, first, std::min(kAdamBlock, tensors.weights[i].numel() - first)});
  parallel_for(0, std::ssize(blocks), 2, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const auto& [i, first, count] = blocks[static_cast<size_t>(at)];
      const auto part = [first = first](const at::Tensor& t) { return t.mutable_data_ptr<float>() + first; };
      float* weight = part(tensors.weights[i]);
      rows::adam(numbers, part(tensors.grads[i]), weight, part(tensors.exp_avgs[i]),
                 part(tensors.exp_avg_sqs[i]), count);
      if (const at::Tensor& copy = tensors.copies[i]; copy.defined())
        with_element_type(copy, [&, n = count, first = first]<typename T>(T) {
          rows::narrow(weight, copy.mutable_data_ptr<T>() + first, n);
        });
    }
  });
}

}  // namespace hyperion::kernels
