#include "trainer/optim/ema.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/empty_like.h>

#include "base/device/parallel_for.h"
#include "base/error.h"

namespace hyperion::optim {
namespace {

constexpr int64_t kExchangeBytes = 16 << 20;
constexpr int64_t kGrain = 1 << 15;

// Updates the average in one pass over memory on the CPU; a thread takes at least `grain` elements. Every
// element has the same two roundings in any sharding, so a shard's average equals that part of the unsharded
// average bit for bit.
template <typename T>
void average_rows(const at::Tensor& averages, const at::Tensor& weights, T share, int64_t grain) {
  T* average = averages.data_ptr<T>();
  const T* weight = weights.data_ptr<T>();
  parallel_for(0, averages.numel(), grain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) average[i] += share * (weight[i] - average[i]);
  });
}

void average_rows(const at::Tensor& average, const at::Tensor& weight, double share, int64_t grain) {
  if (average.scalar_type() == at::kDouble)
    average_rows<double>(average, weight, share, grain);
  else
    average_rows<float>(average, weight, static_cast<float>(share), grain);
}

// Exchanges the tensors through a small buffer.
void exchange(const at::Tensor& one, const at::Tensor& other) {
  const at::Tensor a = one.view(-1), b = other.view(-1);
  const int64_t step = std::max<int64_t>(1, kExchangeBytes / static_cast<int64_t>(a.element_size()));
  for (int64_t first = 0; first < a.numel(); first += step) {
    const int64_t count = std::min(step, a.numel() - first);
    const at::Tensor held = a.narrow(0, first, count).clone();
    a.narrow(0, first, count).copy_(b.narrow(0, first, count));
    b.narrow(0, first, count).copy_(held);
  }
}

}  // namespace

Ema::Ema(std::vector<parallel::ShardedParameterPtr> parameters, const config::JobConfig::Ema& options)
    : parameters_(std::move(parameters)), options_(options) {
  for (const parallel::ShardedParameterPtr& parameter : parameters_) {
    const at::Tensor& weight = parameter->master();
    const bool moves = options_.device == config::EmaDevice::kCpu && !weight.is_cpu();
    averages_.push_back(moves ? weight.to(at::kCPU) : weight.clone());
    if (weight.numel() == 0) continue;
    filled_.push_back({averages_.back(), weight, {}});
    if (moves)
      filled_.back().staged = at::empty_like(weight, weight.options().device(at::kCPU).pinned_memory(true));
  }
}

Ema::~Ema() {
  if (worker_.valid()) worker_.wait();
}

void Ema::update(int64_t step, const at::Tensor& skip) {
  if (swapped_) throw_bug("the average of the weights is updated while it is swapped in");
  if (step % options_.every != 0 || filled_.empty()) return;
  at::NoGradGuard no_grad;
  if (filled_.front().staged.defined())
    start_update_on_host(skip);
  else
    update_in_place(skip);
}

void Ema::update_in_place(const at::Tensor& skip) {
  if (filled_.front().average.is_cpu()) {
    if (skip.item<double>() != 0) return;
    for (const Pair& pair : filled_) average_rows(pair.average, pair.weight, 1 - options_.decay, kGrain);
    return;
  }
  std::vector<at::Tensor> averages, weights;
  for (const Pair& pair : filled_) {
    averages.push_back(pair.average);
    weights.push_back(pair.weight);
  }
  // A share of 0 leaves the average unchanged: weights are finite, because a skipped step did not change
  // them.
  const at::Tensor share = ((1 - skip) * (1 - options_.decay)).to(averages.front().scalar_type());
  at::_foreach_lerp_(averages, weights, std::vector<at::Tensor>(averages.size(), share));
}

void Ema::start_update_on_host(const at::Tensor& skip) {
  wait_for_update();
  for (const Pair& pair : filled_) pair.staged.copy_(pair.weight, /*non_blocking=*/true);
  if (!staged_skip_.defined())
    staged_skip_ = at::empty_like(skip, skip.options().device(at::kCPU).pinned_memory(true));
  staged_skip_.copy_(skip, /*non_blocking=*/true);
  copied_.record(DeviceStream::current(filled_.front().weight.device()));
  worker_ = std::async(std::launch::async, [this] {
    copied_.wait_on_host();
    if (staged_skip_.item<double>() != 0) return;
    for (const Pair& pair : filled_)  // a team of this thread's own would be made and ended at each update
      average_rows(pair.average, pair.staged, 1 - options_.decay, pair.average.numel());
  });
}

void Ema::wait_for_update() {
  if (worker_.valid()) worker_.get();
}

void Ema::restart() {
  if (swapped_) throw_bug("the average of the weights is restarted while it is swapped in");
  at::NoGradGuard no_grad;
  wait_for_update();
  for (const Pair& pair : filled_) pair.average.copy_(pair.weight);
}

const std::vector<at::Tensor>& Ema::tensors() {
  if (swapped_) throw_bug("the average of the weights is read while it is swapped in");
  wait_for_update();
  return averages_;
}

void Ema::swap_in() {
  if (swapped_) throw_bug("the average of the weights is swapped in twice");
  wait_for_update();
  swap();
}

void Ema::swap_out() {
  if (!swapped_) throw_bug("the average of the weights is swapped out, but was not in");
  swap();
}

void Ema::swap() {
  at::NoGradGuard no_grad;
  swapped_ = !swapped_;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& master = parameters_[i]->master();
    if (parameters_[i]->has_separate_compute_shard())
      parameters_[i]->compute_shard().copy_(swapped_ ? averages_[i] : master);
    else  // the masters themselves are what the model reads
      exchange(averages_[i], master);
  }
}

}  // namespace hyperion::optim
