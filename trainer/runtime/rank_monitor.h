// Which rank holds the others up, and whose GPU throttles or has memory errors: measured by every rank, put
// together at logged steps.
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
  // `planned_bubble`: of a step, where there is a pipeline. Collective; `runtime` outlives it.
  RankMonitor(const Runtime& runtime, std::optional<double> planned_bubble);

  // Around a step that will be logged: from before its data are fetched until its update is made.
  void start_step() { timer_.emplace(runtime_.device); }
  void stop_step() { timer_->stop(); }
  // Collective: the metrics of the step, on every rank; rank 0 logs warnings. When the host has waited for
  // the step's work.
  metrics::MetricList log_step(int64_t step);

 private:
  const Runtime& runtime_;
  std::optional<double> planned_bubble_;
  std::vector<int> stages_;  // by rank: its coordinate in the pipeline
  std::optional<parallel::StepTimer> timer_;
  std::optional<metrics::GpuSampler> gpu_;
  std::optional<metrics::RankWarnings> warnings_;  // of rank 0
};

}  // namespace hyperion::trainer
