// RunHistory reconstructs a run from the rows of its metrics.jsonl: the current steps, and separately the
// superseded steps, which a restart repeated. No I/O. Memory does not grow with the number of rows.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/report/metric_rows.h"
#include "app/report/step_buckets.h"

namespace hyperion::report {

// An attempt covers the rows of one start of the job.
struct Attempt {
  int64_t first_step = 0;  // the step after the resumed one, as far as rows tell
  int64_t last_step = 0;
  double first_time = 0;  // seconds since 1970
};

class RunHistory {
 public:
  // All attempts and events are counted, but only the newest are kept. Rows are added to the last kept
  // attempt.
  static constexpr size_t kMaxAttempts = 101, kMaxEvents = 100;

  explicit RunHistory(size_t max_buckets);

  // Adds a row; the caller adds rows from the oldest to the newest. A row starts another attempt if its step
  // and kind do not follow those of the row before, if its run id differs, or if it names the step that it
  // resumed from. A step is superseded if a later attempt repeated it, or if a later "start" event begins
  // from an earlier step. A bucket is superseded as a whole: a wide one with up to width() - 1 steps that no
  // attempt repeated.
  void add(const MetricRow& row);

  // Merges the history into fewer buckets.
  void limit_buckets(size_t max_buckets);

  const StepBuckets& current(RowKind kind) const { return current_[static_cast<size_t>(kind)]; }
  const StepBuckets& superseded(RowKind kind) const { return superseded_[static_cast<size_t>(kind)]; }
  // Returns the newest row of the kind, or nullptr.
  const MetricRow* newest(RowKind kind) const;
  const std::vector<Attempt>& attempts() const { return attempts_; }  // newest first
  const std::vector<MetricRow>& events() const { return events_; }    // newest first
  uint64_t event_count() const { return event_count_; }
  uint64_t attempt_count() const { return attempt_count_; }
  double first_time() const { return first_time_; }
  double last_time() const { return last_time_; }
  // Returns the smallest current step with a non-finite loss, validation loss or gradient norm.
  std::optional<int64_t> first_non_finite_step() const { return first_non_finite_; }

 private:
  bool starts_attempt(const MetricRow& row) const;
  void supersede_from(int64_t step);
  void find_non_finite(const MetricRow& row);

  std::array<StepBuckets, kRowKinds> current_, superseded_;
  std::array<std::optional<MetricRow>, kRowKinds> newest_;
  std::vector<Attempt> attempts_;
  uint64_t attempt_count_ = 0;
  std::vector<MetricRow> events_;
  uint64_t event_count_ = 0;
  std::optional<MetricRow> last_;  // the last row that is not an event
  // The run id and step of a "start" without an attempt yet, and the first step of the newest attempt.
  std::optional<std::pair<std::string, int64_t>> started_;
  int64_t begin_ = 0;
  double first_time_ = std::numeric_limits<double>::infinity();
  double last_time_ = -std::numeric_limits<double>::infinity();
  std::optional<int64_t> first_non_finite_;
};

}  // namespace hyperion::report
