#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/div.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>

#include "models/kernels/adam/rounded.h"

namespace hyperion::kernels {

ElementIndices indices_of(const std::vector<int64_t>& shape, const Box& box) {
  TORCH_CHECK(shape.size() <= 3, "indices_of: ", shape.size(), " dimensions");
  const size_t missing = 3 - shape.size();
  const auto at = [missing](const std::vector<int64_t>& of, size_t dim, int64_t none) {
    return dim < missing ? none : of[dim - missing];
  };
  const int64_t columns = at(shape, 2, 1), rows = at(shape, 1, 1);
  ElementIndices indices{
      .first = (at(box.offset, 0, 0) * rows + at(box.offset, 1, 0)) * columns + at(box.offset, 2, 0),
      .run = at(box.shape, 2, 1),
      .runs = at(box.shape, 1, 1),
      .run_stride = columns,
      .plane_stride = rows * columns};
  if (indices.run == columns) {  // rows are consecutive
    indices.run *= indices.runs;
    indices.runs = 1;
    if (at(box.shape, 1, 1) == rows) indices.run *= at(box.shape, 0, 1);
  }
  indices.run = std::max<int64_t>(indices.run, 1);  // of nothing
  indices.runs = std::max<int64_t>(indices.runs, 1);
  return indices;
}

namespace plain {
namespace {

using at::Tensor;

constexpr int64_t kWord = 0xFFFFFFFF;

// Words of 32 bits are in int64.
Tensor product(const Tensor& a, int64_t b, Tensor& high) {
  const Tensor both = a * b;  // modulo 2^64
  high = both.bitwise_right_shift(32).bitwise_and(kWord);
  return both.bitwise_and(kWord);
}

// Returns the word of each element of a parameter's part.
Tensor random_words(uint64_t key, const ElementIndices& indices, int64_t numel, const Tensor& updates) {
  const Tensor i = at::arange(numel, updates.options().dtype(at::kLong)), run = i.floor_divide(indices.run);
  const Tensor element = indices.first + i.remainder(indices.run) +
                         run.remainder(indices.runs) * indices.run_stride +
                         run.floor_divide(indices.runs) * indices.plane_stride;
  const Tensor block = element.bitwise_right_shift(2), count = updates.to(at::kLong);
  Tensor c0 = block.bitwise_and(kWord), c1 = block.bitwise_right_shift(32),
         c2 = at::full_like(block, 1) * count.bitwise_and(kWord),
         c3 = at::full_like(block, 1) * count.bitwise_right_shift(32);
  int64_t k0 = static_cast<int64_t>(key) & kWord, k1 = static_cast<int64_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    Tensor high0, high1;
    const Tensor low0 = product(c0, 0xD2511F53, high0), low1 = product(c2, 0xCD9E8D57, high1);
    c0 = high1.bitwise_xor(c1).bitwise_xor(k0);
    c1 = low1;
    c2 = high0.bitwise_xor(c3).bitwise_xor(k1);
    c3 = low0;
    k0 = (k0 + 0x9E3779B9) & kWord;
    k1 = (k1 + 0xBB67AE85) & kWord;
  }
  const Tensor which = element.bitwise_and(3);
  return at::where(which.eq(0), c0, at::where(which.eq(1), c1, at::where(which.eq(2), c2, c3)));
}

// Returns x in bf16. `random`: 16 bits of each element.
Tensor rounded_by(const Tensor& x, const Tensor& random) {
  const Tensor bits = x.contiguous().view(at::kInt).to(at::kLong);
  const Tensor upper = (bits + random.view_as(x)).bitwise_right_shift(16);
  return at::where(x.isnan(), at::full_like(upper, 0x7FC0), upper).to(at::kShort).view(at::kBFloat16);
}

Tensor scalar(double value) {
  return at::full({}, value, at::TensorOptions(at::kFloat));  // on the host: joins a tensor of any device
}

}  // namespace

void rounded_adam(const RoundedAdamStep& step, const RoundedAdamTensors& tensors) {
  const at::NoGradGuard no_grad;
  const Tensor t = step.updates.to(at::kDouble), skipped = step.skip.ne(0);
  const Tensor correction1 = 1 - at::pow(step.beta1, t),
               root2 = (1 - at::pow(step.beta2, t)).sqrt().to(at::kFloat),
               step_size = at::div(at::full_like(correction1, step.lr), correction1).to(at::kFloat);
  const bool nearer = static_cast<float>(1 - step.beta1) < 0.5F;
  for (size_t i = 0; i < tensors.weights.size(); ++i) {
    const Tensor &weight = tensors.weights[i], &first = tensors.exp_avgs[i], &second = tensors.exp_avg_sqs[i];
    Tensor g = tensors.grads[i].view_as(weight);
    if (step.divisor.defined()) g = g / step.divisor.to(at::kFloat);
    if (!step.decoupled && step.weight_decay != 0) g = g + weight * scalar(step.weight_decay);
    const Tensor m0 = first.to(at::kFloat), v0 = second.to(at::kFloat), difference = g - m0;
    const Tensor m = nearer ? m0 + difference * scalar(1 - step.beta1) : g - difference * scalar(step.beta1);
    const Tensor v = v0 * scalar(step.beta2) + g * scalar(1 - step.beta2) * g;
    const Tensor root = v.to(at::kDouble).sqrt().to(at::kFloat);  // at::sqrt in fp32 is MKL's, not exact
    const double shrink = step.decoupled ? 1 - step.lr * step.weight_decay : 1;
    const Tensor w = weight * scalar(shrink) - m * step_size / (root / root2 + scalar(step.eps));
    const Tensor words = random_words(tensors.keys[i], tensors.indices[i], weight.numel(), step.updates);
    weight.copy_(at::where(skipped, weight, w));
    first.copy_(at::where(skipped, first, rounded_by(m, words.bitwise_and(0xFFFF))));
    second.copy_(at::where(skipped, second, rounded_by(v, words.bitwise_right_shift(16))));
    if (tensors.copies[i].defined()) tensors.copies[i].copy_(weight);
  }
}

void rounded_momentum(const RoundedMomentumStep& step, const RoundedMomentumTensors& tensors) {
  const at::NoGradGuard no_grad;
  const Tensor skipped = step.skip.ne(0);
  const bool nearer = static_cast<float>(1 - step.momentum) < 0.5F;
  for (size_t i = 0; i < tensors.grads.size(); ++i) {
    const Tensor &momentum = tensors.momenta[i], &grad = tensors.grads[i];
    const Tensor g = grad.view_as(momentum).masked_fill(skipped, 0), m0 = momentum.to(at::kFloat);
    const Tensor difference = g - m0;
    const Tensor m = at::where(
        skipped, m0,
        nearer ? m0 + difference * scalar(1 - step.momentum) : g - difference * scalar(step.momentum));
    const Tensor words = random_words(tensors.keys[i], tensors.indices[i], m.numel(), step.updates);
    momentum.copy_(rounded_by(m, words.bitwise_and(0xFFFF)));
    const Tensor back = m - g;
    const Tensor result = !step.nesterov        ? m
                          : step.momentum < 0.5 ? g + back * scalar(step.momentum)
                                                : m - back * scalar(1 - step.momentum);
    grad.view_as(momentum).copy_(result);
  }
}

}  // namespace plain
}  // namespace hyperion::kernels
