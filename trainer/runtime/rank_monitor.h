// RankMonitor finds ranks that delay the others, and GPUs that throttle or have memory errors. Every rank
// measures itself; logged steps collect the figures.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "parallel/comm/step_timer.h"
#include "trainer/metrics/gpu_sampler.h"
#include "trainer/metrics/rank_figures.h"
#include "trainer/runtime/runtime.h"

namespace hyperion::trainer {

class RankMonitor {
 public:
  // `planned_bubble` is the pipeline's planned bubble, if there is a pipeline. `runtime` outlives this
  // object. Collective.
  RankMonitor(const Runtime& runtime, std::optional<double> planned_bubble);

  // Call them around a step that will be logged: before its data are fetched, and after its update.
  void start_step() { timer_.emplace(runtime_.device); }
  void stop_step() { timer_->stop(); }
  // Returns the metrics of the step on every rank; rank 0 logs warnings. Call it after the host has waited
  // for the step's work. Collective.
  metrics::MetricList log_step(int64_t step);

 private:
  const Runtime& runtime_;
  std::optional<double> planned_bubble_;
  std::vector<int> stages_;  // by rank: its pipeline coordinate
  std::optional<parallel::StepTimer> timer_;
  std::optional<metrics::GpuSampler> gpu_;
  std::optional<metrics::RankWarnings> warnings_;  // on rank 0
};

}  // namespace hyperion::trainer
