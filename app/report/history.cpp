#include "app/report/history.h"

#include <algorithm>
#include <cmath>

namespace hyperion::report {

RunHistory::RunHistory(size_t max_buckets) {
  limit_buckets(max_buckets);
}

void RunHistory::limit_buckets(size_t max_buckets) {
  for (StepBuckets& buckets : current_) buckets.limit(max_buckets);
  for (StepBuckets& buckets : superseded_) buckets.limit(max_buckets / 2);
}

bool RunHistory::starts_attempt(const MetricRow& row) const {
  if (!last_ || row.value(kResumeStepTag)) return true;
  if (!row.run_id.empty() && !last_->run_id.empty() && row.run_id != last_->run_id) return true;
  return std::pair(last_->step, last_->kind) >= std::pair(row.step, row.kind);
}

void RunHistory::find_non_finite(const MetricRow& row) {
  for (const int tag : {kLossTag, kValidationLossTag, kGradNormTag}) {
    const auto value = row.value(tag);
    if (value && !std::isfinite(*value))
      first_non_finite_ = std::min(first_non_finite_.value_or(row.step), row.step);
  }
}

void RunHistory::supersede_from(int64_t step) {
  for (size_t kind = 0; kind < kRowKinds; ++kind)
    for (const StepBuckets::Bucket& bucket : current_[kind].take_from(step)) superseded_[kind].add(bucket);
  if (first_non_finite_ && *first_non_finite_ >= step) first_non_finite_.reset();
}

void RunHistory::add(const MetricRow& row) {
  const double time = *row.value(kTimeTag);
  first_time_ = std::min(first_time_, time);
  last_time_ = std::max(last_time_, time);
  newest_[static_cast<size_t>(row.kind)] = row;

  if (!row.event.empty()) {
    ++event_count_;
    events_.insert(events_.begin(), row);
    if (events_.size() > kMaxEvents) events_.pop_back();
    if (row.event == "start") {
      supersede_from(row.step + 1);
      started_ = std::pair(row.run_id, row.step);
    }
  } else if (row.kind != RowKind::kEvent) {
    const auto resumed = row.value(kResumeStepTag);
    if (starts_attempt(row)) {
      begin_ = row.step;
      if (started_ && started_->first == row.run_id) begin_ = started_->second + 1;
      started_.reset();
      if (resumed && *resumed >= 0 && *resumed < static_cast<double>(row.step))
        begin_ = static_cast<int64_t>(*resumed) + 1;
      if (attempt_count_++ > 0) supersede_from(begin_);
      attempts_.insert(attempts_.begin(), {begin_, row.step, time});
      if (attempts_.size() > kMaxAttempts) attempts_.pop_back();
    }
    Attempt& attempt = attempts_.front();
    attempt.last_step = std::max(attempt.last_step, row.step);
    attempt.first_step = std::min(begin_, attempt.last_step);
    attempt.first_time = std::min(attempt.first_time, time);
    last_ = row;
  }
  current_[static_cast<size_t>(row.kind)].add(row.step, row.values);
  find_non_finite(row);
}

const MetricRow* RunHistory::newest(RowKind kind) const {
  const auto& row = newest_[static_cast<size_t>(kind)];
  return row ? &*row : nullptr;
}

}  // namespace hyperion::report
