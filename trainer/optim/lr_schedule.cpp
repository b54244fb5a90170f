#include "trainer/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include "base/counted.h"

namespace hyperion::optim {
namespace {

constexpr int64_t kEndless = int64_t{1} << 53;  // steps; keeps sums in 64 bits and products exact in a double

// nearbyint rounds half to even, as Python's round does.
int64_t decay_steps(int64_t total_steps, double ratio) {
  return static_cast<int64_t>(std::nearbyint(static_cast<double>(total_steps) * ratio));
}

}  // namespace

std::vector<std::string> curve_cuts(const config::JobConfig::LrScheduler& options, int64_t steps) {
  const int64_t total_steps = options.total_steps.value_or(steps), warmup_steps = options.warmup_steps;
  const std::optional<double> decay_ratio = options.decay_ratio;
  std::vector<std::string> cuts;
  const int64_t warmup = std::min(warmup_steps, total_steps);
  if (warmup_steps > total_steps)
    cuts.push_back(
        fmt::format("lr_scheduler.warmup_steps = {} is more than the {} of the learning-rate curve: it is "
                    "cut to {}, and nothing decays",
                    warmup_steps, counted(total_steps, "step"), warmup));
  if (!decay_ratio) return cuts;
  const int64_t wanted = decay_steps(total_steps, *decay_ratio), left = total_steps - warmup;
  if (wanted > left && warmup_steps <= total_steps)
    cuts.push_back(
        fmt::format("lr_scheduler.decay_ratio = {} asks for {} of the learning-rate curve's {}, but "
                    "warm-up takes {}: the decay is cut to {}",
                    *decay_ratio, wanted, counted(total_steps, "step"), warmup, counted(left, "step")));
  return cuts;
}

LrSchedule::LrSchedule(const config::JobConfig::LrScheduler& options, int64_t steps)
    : type_(options.decay_type), min_factor_(options.min_lr_factor) {
  const int64_t total_steps = std::min(options.total_steps.value_or(steps), kEndless);
  warmup_ = std::min(options.warmup_steps, total_steps);
  decay_ = total_steps - warmup_;
  if (options.decay_ratio) decay_ = std::min(decay_, decay_steps(total_steps, *options.decay_ratio));
  stable_ = total_steps + 1 - warmup_ - decay_;
}

double LrSchedule::factor(int64_t step) const {
  step = std::min(step, 2 * kEndless);
  if (step < warmup_) return static_cast<double>(step + 1) / static_cast<double>(warmup_);
  if (step < warmup_ + stable_ || decay_ == 0) return 1.0;
  const double progress =
      std::min(1.0, static_cast<double>(step + 1 - warmup_ - stable_) / static_cast<double>(decay_));
  double shape = 0.0;
  switch (type_) {
    case config::DecayType::kLinear:
      shape = 1.0 - progress;
      break;
    case config::DecayType::kSqrt:
      shape = 1.0 - std::sqrt(progress);
      break;
    case config::DecayType::kCosine:
      shape = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
      break;
  }
  return min_factor_ + (1.0 - min_factor_) * shape;
}

}  // namespace hyperion::optim
