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
constexpr int64_t kGrain = 1 << 15;  // elements per thread, at least

enum class Threads { kAll, kThisOne };

// One pass over memory on the CPU. Every element goes through the same two roundings whichever shard holds
// it, so a shard's average is bit for bit that part of the whole's.
template <typename T>
void average_rows(T* average, const T* weight, int64_t count, T share, Threads threads) {
  const auto work = [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) average[i] += share * (weight[i] - average[i]);
  };
  if (threads == Threads::kAll)
    parallel_for(0, count, kGrain, work);
  else
    work(0, count);
}

void average_rows(const at::Tensor& average, const at::Tensor& weight, double share, Threads threads) {
  if (average.scalar_type() == at::kDouble)
    average_rows(average.data_ptr<double>(), weight.data_ptr<double>(), average.numel(), share, threads);
  else
    average_rows(average.data_ptr<float>(), weight.data_ptr<float>(), average.numel(),
                 static_cast<float>(share), threads);
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
    for (const Pair& pair : filled_)
      average_rows(pair.average, pair.weight, 1 - options_.decay, Threads::kAll);
    return;
  }
  std::vector<at::Tensor> averages, weights;
  for (const Pair& pair : filled_) {
    averages.push_back(pair.average);
    weights.push_back(pair.weight);
  }
  // A share of 0 leaves the average as it is: weights are finite, because a skipped step did not touch them.
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
      average_rows(pair.average, pair.staged, 1 - options_.decay, Threads::kThisOne);
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

int64_t Ema::bytes() const {
  int64_t total = 0;
  for (const at::Tensor& average : averages_) total += static_cast<int64_t>(average.nbytes());
  return total;
}

void Ema::swap_in() {
  if (swapped_) throw_bug("the average of the weights is swapped in twice");
  at::NoGradGuard no_grad;
  wait_for_update();
  exchange_masters_and_averages();
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i]->has_separate_compute_shard()) parameters_[i]->compute_shard().copy_(averages_[i]);
  swapped_ = true;
}

void Ema::swap_out() {
  if (!swapped_) throw_bug("the average of the weights is swapped out, but was not in");
  at::NoGradGuard no_grad;
  exchange_masters_and_averages();
  for (const parallel::ShardedParameterPtr& parameter : parameters_)
    if (parameter->has_separate_compute_shard()) parameter->compute_shard().copy_(parameter->master());
  swapped_ = false;
}

// Where the masters themselves are what the model reads; through a small buffer.
void Ema::exchange_masters_and_averages() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i]->has_separate_compute_shard() || averages_[i].numel() == 0) continue;
    const at::Tensor a = averages_[i].view(-1), b = parameters_[i]->master().view(-1);
    const int64_t step = std::max<int64_t>(1, kExchangeBytes / static_cast<int64_t>(a.element_size()));
    for (int64_t first = 0; first < a.numel(); first += step) {
      const int64_t count = std::min(step, a.numel() - first);
      const at::Tensor held = a.narrow(0, first, count).clone();
      a.narrow(0, first, count).copy_(b.narrow(0, first, count));
      b.narrow(0, first, count).copy_(held);
    }
  }
}

}  // namespace hyperion::optim
