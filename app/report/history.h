// What happened in a run, from the rows of its metrics.jsonl: the current steps, and separately those that a
// restart repeated. No I/O; memory does not grow with the number of rows.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "app/report/metric_rows.h"
#include "app/report/step_buckets.h"

namespace hyperion::report {

// Rows that one start of the job wrote.
struct Attempt {
  int64_t first_step = 0;  // the step after the one resumed from, as far as the rows tell
  int64_t last_step = 0;
  double first_time = 0;  // seconds since 1970
};

class RunHistory {
 public:
  // All are counted, and the newest kept; the last of the attempts is the one that rows are added to.
  static constexpr size_t kMaxAttempts = 101, kMaxEvents = 100;

  explicit RunHistory(size_t max_buckets);

  // Rows are given from the newest to the oldest. A row belongs to an earlier attempt than the one after it
  // when its step and kind do not come before that one's, when the run id is another, or when the later row
  // says what it resumed from. A step that a later attempt made again is superseded, as are all steps after
  // the one that a later "start" event begins from.
  void add_older(const MetricRow& row);

  // The same history in fewer buckets.
  void limit_buckets(size_t max_buckets);

  const StepBuckets& current(RowKind kind) const { return current_[static_cast<size_t>(kind)]; }
  const StepBuckets& superseded(RowKind kind) const { return superseded_[static_cast<size_t>(kind)]; }
  // The newest row of the kind; nullptr when there is none.
  const MetricRow* newest(RowKind kind) const;
  const std::vector<Attempt>& attempts() const { return attempts_; }  // newest first
  const std::vector<MetricRow>& events() const { return events_; }    // newest first
  uint64_t event_count() const { return event_count_; }
  uint64_t attempt_count() const { return attempt_count_; }
  double first_time() const { return first_time_; }
  double last_time() const { return last_time_; }
  // The smallest current step with a loss, validation loss or gradient norm that is not finite.
  std::optional<int64_t> first_non_finite_step() const { return first_non_finite_; }

 private:
  bool starts_earlier_attempt(const MetricRow& row) const;

  std::array<StepBuckets, kRowKinds> current_, superseded_;
  std::array<std::optional<MetricRow>, kRowKinds> newest_;
  std::vector<Attempt> attempts_;
  uint64_t attempt_count_ = 0;
  std::vector<MetricRow> events_;
  uint64_t event_count_ = 0;
  std::optional<MetricRow> later_;  // the row after the one that is added; no event
  int64_t superseded_from_ = std::numeric_limits<int64_t>::max();
  double first_time_ = std::numeric_limits<double>::infinity();
  double last_time_ = -std::numeric_limits<double>::infinity();
  std::optional<int64_t> first_non_finite_;
};

}  // namespace hyperion::report
