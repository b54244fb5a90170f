// What the ranks of a job measure of themselves, as metrics of the job and as warnings of the ranks that hold
// it up or whose GPUs are about to fail. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "trainer/metrics/gpu_sampler.h"
#include "trainer/metrics/metrics_jsonl.h"

namespace hyperion::metrics {

// Of one rank, at a logged step.
struct RankFigures {
  double own_seconds = 0;            // of that step, without waits for other ranks
  std::optional<GpuCounters> gpu{};  // none on a CPU, or where nothing can be read
  // Of a pipeline's schedule, from its first action to its last, and of that waiting for other stages.
  double schedule_seconds = 0, transfer_wait_seconds = 0;
  static auto members(auto& self) {
    return std::tie(self.own_seconds, self.gpu, self.schedule_seconds, self.transfer_wait_seconds);
  }
};

// docs/metrics.md lists the tags. A number that no rank has is left out; own times of one rank, too.
MetricList rank_metrics(const std::vector<RankFigures>& ranks);

// Of a pipeline: `stages` has each rank's coordinate in it. As `planned_bubble`, the bubble is the part of
// all ranks' time, until the last one is done, in which they do not work. The slowest stage's ranks work
// longest.
MetricList pipeline_metrics(const std::vector<RankFigures>& ranks, const std::vector<int>& stages,
                            double planned_bubble);

struct RankPlace {
  std::string host;
  std::string gpu{};  // "0000:1b:00.0"; empty on a CPU
  int stage = 0;      // its coordinate in the pipeline
  static auto members(auto& self) { return std::tie(self.host, self.gpu, self.stage); }
};

// Decides which warnings a logged step is worth, so that none is said in every step.
class RankWarnings {
 public:
  // A rank that works longer than this times the median (in a pipeline: of the ranks with its stages, since
  // stages differ in their work) in kSlowLogs logged steps in a row, by at least
  // kSlowSeconds, is warned of; a second time after kSlowLogsAgain more.
  static constexpr double kSlow = 1.1, kSlowSeconds = 0.01;
  static constexpr int kSlowLogs = 5, kSlowLogsAgain = 100;
  static constexpr size_t kMaxNamed = 8;  // per step
  static constexpr int64_t kMoreCorrected = 10;

  explicit RankWarnings(std::vector<RankPlace> places) : ranks_(places.size()), places_(std::move(places)) {}

  // Of all ranks. The first time that a GPU throttles for a reason; the first corrected memory error and each
  // time there are kMoreCorrected times as many; each time that more are uncorrected or more rows remapped.
  std::vector<std::string> add(int64_t step, const std::vector<RankFigures>& ranks);

 private:
  struct Known {
    int slow_logs = 0;  // in a row
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
