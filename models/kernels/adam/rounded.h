// The update of Adam's moments, or of a momentum, in bf16, in one pass: the arithmetic is fp32, operation
// by operation, and what is stored is rounded stochastically, up or down with the probability that leaves the
// mean unchanged. All forms compute the same bits.
//
// The random bits are those of Philox4x32-10 with the parameter's key. Element e of the whole parameter has
// word e % 4 of block e / 4 (counter_high: the number of updates). The lower half of the word rounds the
// first moment or the momentum, the upper half the second moment.
#pragma once

#include <cstdint>
#include <vector>

#include "base/box.h"
#include "models/kernels/adam/element_indices.h"
#include "models/kernels/kernel.h"

namespace hyperion::kernels {

// Returns the indices of the elements of `box`, a part of a tensor of `shape` with up to three dimensions.
ElementIndices indices_of(const std::vector<int64_t>& shape, const Box& box);

// The tensors of one update. Entries i of all lists belong to one parameter's part; tensors are contiguous
// and have the same number of elements. Weights and gradients are fp32, moments and copies bf16. `copies` may
// be undefined.
struct RoundedAdamTensors {
  std::vector<at::Tensor> weights, grads, exp_avgs, exp_avg_sqs, copies;
  std::vector<uint64_t> keys;
  std::vector<ElementIndices> indices;
};
struct RoundedAdamStep {
  double lr, beta1, beta2, eps, weight_decay;
  bool decoupled;      // AdamW: decay shrinks the weight; Adam: it is added to the gradient
  at::Tensor updates;  // 0-dim on the tensors' device: the number of updates, with this one
  at::Tensor skip;     // likewise: 1: nothing changes
  at::Tensor divisor;  // likewise: divides the gradients; undefined: 1
};

// The update of a momentum: m <- lerp(m, g, 1 - momentum); then g <- lerp(g, m, momentum) (Nesterov) or
// g <- m, with m before its rounding.
struct RoundedMomentumTensors {
  std::vector<at::Tensor> grads, momenta;
  std::vector<uint64_t> keys;
  std::vector<ElementIndices> indices;
};
struct RoundedMomentumStep {
  double momentum;
  bool nesterov;
  at::Tensor updates, skip;  // as above; a skipped update leaves m, and takes g as 0
};

using RoundedAdam = void(const RoundedAdamStep& step, const RoundedAdamTensors& tensors);
using RoundedMomentum = void(const RoundedMomentumStep& step, const RoundedMomentumTensors& tensors);
namespace plain {
RoundedAdam rounded_adam;
RoundedMomentum rounded_momentum;
}  // namespace plain
namespace cpu {
RoundedAdam rounded_adam;
RoundedMomentum rounded_momentum;
}  // namespace cpu

inline const at::Tensor& first_tensor(const RoundedAdamStep& step) {
  return step.updates;
}
inline const at::Tensor& first_tensor(const RoundedMomentumStep& step) {
  return step.updates;
}
// Profiles and the simulated GPU read them back in this order.
inline void append(Values& values, const std::vector<uint64_t>& keys,
                   const std::vector<ElementIndices>& indices) {
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < keys.size(); ++i) {
    const ElementIndices& at = indices[i];
    numbers.insert(numbers.end(), {static_cast<int64_t>(keys[i]), at.first, at.run, at.runs, at.run_stride,
                                   at.plane_stride});
  }
  values.emplace_back(std::move(numbers));
}
inline void append(Values& values, const RoundedAdamTensors& t) {
  for (const auto* list : {&t.weights, &t.grads, &t.exp_avgs, &t.exp_avg_sqs, &t.copies})
    append(values, at::TensorList(*list));
  append(values, t.keys, t.indices);
}
inline void append(Values& values, const RoundedMomentumTensors& t) {
  append(values, at::TensorList(t.grads));
  append(values, at::TensorList(t.momenta));
  append(values, t.keys, t.indices);
}
inline void append(Values& values, const RoundedAdamStep& step) {
  for (const auto* t : {&step.updates, &step.skip, &step.divisor}) append(values, *t);
  for (const double x : {step.lr, step.beta1, step.beta2, step.eps, step.weight_decay}) append(values, x);
  append(values, static_cast<int64_t>(step.decoupled));
}
inline void append(Values& values, const RoundedMomentumStep& step) {
  for (const auto* t : {&step.updates, &step.skip}) append(values, *t);
  append(values, step.momentum);
  append(values, static_cast<int64_t>(step.nesterov));
}

}  // namespace hyperion::kernels
