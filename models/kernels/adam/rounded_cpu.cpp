#include <algorithm>
#include <cmath>

#include "base/device/parallel_for.h"
#include "models/kernels/adam/rounded.h"
#include "models/kernels/adam/rounded_rows.h"

namespace hyperion::kernels {
namespace {

constexpr int64_t kRoundedBlock = 16384;  // elements of one tensor that a thread updates at a time
constexpr int64_t kWordsAtOnce = 1024;    // elements whose random words are in the cache

// Calls update(tensor, first, count, words) for all elements of all tensors, on the threads.
template <typename F>
void for_each_part(const std::vector<at::Tensor>& tensors, const std::vector<uint64_t>& keys,
                   const std::vector<ElementIndices>& indices, const at::Tensor& updates, const F& update) {
  struct Block {
    size_t tensor;
    int64_t first, count;
  };
  std::vector<Block> blocks;
  for (size_t i = 0; i < tensors.size(); ++i)
    for (int64_t first = 0; first < tensors[i].numel(); first += kRoundedBlock)
      blocks.push_back({i, first, std::min(kRoundedBlock, tensors[i].numel() - first)});
  const auto counter_high = static_cast<uint64_t>(updates.item<double>());
  parallel_for(0, std::ssize(blocks), 2, [&](int64_t begin, int64_t end) {
    uint32_t words[kWordsAtOnce + 8];
    for (int64_t block = begin; block < end; ++block) {
      const auto& [i, first, count] = blocks[static_cast<size_t>(block)];
      for (int64_t at = first; at < first + count;) {
        const int64_t n = std::min({kWordsAtOnce, first + count - at, consecutive_from(indices[i], at)});
        const int64_t element = index_of(indices[i], at), before = element % 4;
        rows::random_words(keys[i], counter_high, static_cast<uint64_t>(element / 4), (before + n + 3) / 4,
                           words);
        update(i, at, n, words + before);
        at += n;
      }
    }
  });
}

uint16_t* bits_of(const at::Tensor& t, int64_t first) {
  return static_cast<uint16_t*>(t.mutable_data_ptr()) + first;
}

}  // namespace

void cpu::rounded_adam(const RoundedAdamStep& step, const RoundedAdamTensors& tensors) {
  if (step.skip.item<float>() != 0) return;
  const double t = step.updates.item<double>();
  const rows::RoundedAdamNumbers numbers = {
      .divisor = step.divisor.defined() ? static_cast<float>(step.divisor.item<double>()) : 1,
      .shrink = static_cast<float>(step.decoupled ? 1 - step.lr * step.weight_decay : 1),
      .added_decay = static_cast<float>(step.decoupled ? 0 : step.weight_decay),
      .beta1 = static_cast<float>(step.beta1),
      .rest1 = static_cast<float>(1 - step.beta1),
      .beta2 = static_cast<float>(step.beta2),
      .rest2 = static_cast<float>(1 - step.beta2),
      .root2 = static_cast<float>(std::sqrt(1 - std::pow(step.beta2, t))),
      .eps = static_cast<float>(step.eps),
      .step_size = static_cast<float>(step.lr / (1 - std::pow(step.beta1, t)))};
  for_each_part(tensors.weights, tensors.keys, tensors.indices, step.updates,
                [&](size_t i, int64_t first, int64_t n, const uint32_t* words) {
                  const at::Tensor& copy = tensors.copies[i];
                  rows::rounded_adam(numbers, words, tensors.grads[i].const_data_ptr<float>() + first,
                                     tensors.weights[i].mutable_data_ptr<float>() + first,
                                     bits_of(tensors.exp_avgs[i], first),
                                     bits_of(tensors.exp_avg_sqs[i], first),
                                     copy.defined() ? bits_of(copy, first) : nullptr, n);
                });
}

void cpu::rounded_momentum(const RoundedMomentumStep& step, const RoundedMomentumTensors& tensors) {
  const bool skipped = step.skip.item<float>() != 0;
  if (skipped)
    for (const at::Tensor& grad : tensors.grads) grad.zero_();
  const rows::RoundedMomentumNumbers numbers = {.momentum = static_cast<float>(step.momentum),
                                                .rest = static_cast<float>(1 - step.momentum),
                                                .nesterov = step.nesterov,
                                                .skipped = skipped};
  for_each_part(tensors.grads, tensors.keys, tensors.indices, step.updates,
                [&](size_t i, int64_t first, int64_t n, const uint32_t* words) {
                  rows::rounded_momentum(numbers, words, tensors.grads[i].mutable_data_ptr<float>() + first,
                                         bits_of(tensors.momenta[i], first), n);
                });
}

}  // namespace hyperion::kernels
