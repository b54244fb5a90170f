// Turns the ranks' own measurements into metrics, and into warnings about ranks that delay the job or whose
// GPUs may fail. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "trainer/metrics/gpu_sampler.h"
#include "trainer/metrics/metrics_jsonl.h"

namespace hyperion::metrics {

// Measurements of one rank at a logged step.
struct RankFigures {
  double own_seconds = 0;            // time of the step, without waits for other ranks
  std::optional<GpuCounters> gpu{};  // none on a CPU, or if nothing can be read
  // Time of the pipeline's schedule from its first action to its last, and its part spent waiting for other
  // stages.
  double schedule_seconds = 0, transfer_wait_seconds = 0;
  static auto members(auto& self) {
    return std::tie(self.own_seconds, self.gpu, self.schedule_seconds, self.transfer_wait_seconds);
  }
};

// Returns the metrics of docs/metrics.md. A number that no rank has is left out, and so are own times if
// there is only one rank.
MetricList rank_metrics(const std::vector<RankFigures>& ranks);

// Returns the pipeline's metrics. `stages` has each rank's pipeline coordinate. The bubble, like
// `planned_bubble`, is the idle share of all ranks' time until the last rank is done. The slowest stage is
// the one whose ranks work longest.
MetricList pipeline_metrics(const std::vector<RankFigures>& ranks, const std::vector<int>& stages,
                            double planned_bubble);

struct RankPlace {
  std::string host;
  std::string gpu{};  // "0000:1b:00.0"; empty on a CPU
  int stage = 0;      // pipeline coordinate
  static auto members(auto& self) { return std::tie(self.host, self.gpu, self.stage); }
};

// Decides which warnings a logged step gives, so that no warning repeats in every step.
class RankWarnings {
 public:
  // A warning names a rank that works longer than kSlow times the median, and by at least kSlowSeconds, in
  // kSlowLogs consecutive logged steps. In a pipeline the median is over the ranks with the same stages,
  // because stages differ in work. The warning repeats after kSlowLogsAgain more logged steps.
  static constexpr double kSlow = 1.1, kSlowSeconds = 0.01;
  static constexpr int kSlowLogs = 5, kSlowLogsAgain = 100;
  static constexpr size_t kMaxNamed = 8;  // per step
  static constexpr int64_t kMoreCorrected = 10;

  explicit RankWarnings(std::vector<RankPlace> places) : ranks_(places.size()), places_(std::move(places)) {}

  // Returns the warnings of a logged step, given the figures of all ranks. GPUs cause a warning at the first
  // throttling for each reason, at the first corrected memory error and each time their number has grown
  // kMoreCorrected times, and at each rise of uncorrected errors or remapped rows.
  std::vector<std::string> add(int64_t step, const std::vector<RankFigures>& ranks);

 private:
  struct Known {
    int slow_logs = 0;  // consecutive
    uint64_t throttled = 0;
    int64_t ecc_corrected = 0, ecc_uncorrected = 0, remapped_rows = 0;
  };
  std::string name(size_t rank) const;
  std::string slow_rank(int64_t step, size_t rank, double seconds, double median);
  std::string gpu_trouble(size_t rank, const GpuCounters& now);

  std::vector<Known> ranks_;
  std::vector<RankPlace> places_;
};

}  // namespace hyperion::metrics
