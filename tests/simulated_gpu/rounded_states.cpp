#include "tests/simulated_gpu/rounded_states.h"

#include <ATen/ATen.h>

#include "models/kernels/adam/rounded.h"

namespace simulated_gpu {
namespace {

using at::Tensor;

// keys and indices, as rounded.h appends them
template <typename Tensors>
void read_indices(const c10::IValue& value, Tensors& tensors) {
  const std::vector<int64_t> numbers = value.toIntVector();
  for (size_t i = 0; i < numbers.size(); i += 6) {
    tensors.keys.push_back(static_cast<uint64_t>(numbers[i]));
    tensors.indices.push_back(
        {numbers[i + 1], numbers[i + 2], numbers[i + 3], numbers[i + 4], numbers[i + 5]});
  }
}

Values rounded_adam(const Values& a) {
  const hyperion::kernels::RoundedAdamStep step = {.lr = a[3].toDouble(),
                                                   .beta1 = a[4].toDouble(),
                                                   .beta2 = a[5].toDouble(),
                                                   .eps = a[6].toDouble(),
                                                   .weight_decay = a[7].toDouble(),
                                                   .decoupled = a[8].toInt() != 0,
                                                   .updates = a[0].toTensor(),
                                                   .skip = a[1].toTensor(),
                                                   .divisor = a[2].isNone() ? Tensor() : a[2].toTensor()};
  hyperion::kernels::RoundedAdamTensors tensors = {a[9].toTensorVector(),
                                                   a[10].toTensorVector(),
                                                   a[11].toTensorVector(),
                                                   a[12].toTensorVector(),
                                                   a[13].toTensorVector(),
                                                   {},
                                                   {}};
  read_indices(a[14], tensors);
  hyperion::kernels::plain::rounded_adam(step, tensors);
  return {};
}
Values rounded_momentum(const Values& a) {
  hyperion::kernels::RoundedMomentumTensors tensors = {a[4].toTensorVector(), a[5].toTensorVector(), {}, {}};
  read_indices(a[6], tensors);
  hyperion::kernels::plain::rounded_momentum({.momentum = a[2].toDouble(),
                                              .nesterov = a[3].toInt() != 0,
                                              .updates = a[0].toTensor(),
                                              .skip = a[1].toTensor()},
                                             tensors);
  return {};
}

}  // namespace

const Substitute* rounded_state_update(const std::string& name) {
  static const Substitute adam = {rounded_adam, nullptr}, momentum = {rounded_momentum, nullptr};
  if (name == "hyperion::rounded_adam_") return &adam;
  return name == "hyperion::rounded_momentum_" ? &momentum : nullptr;
}

}  // namespace simulated_gpu
