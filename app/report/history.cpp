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

bool RunHistory::starts_earlier_attempt(const MetricRow& row) const {
  if (!later_) return true;
  if (!row.run_id.empty() && !later_->run_id.empty() && row.run_id != later_->run_id) return true;
  if (later_->value(kResumeStepTag)) return true;
  return std::pair(row.step, row.kind) >= std::pair(later_->step, later_->kind);
}

void RunHistory::add_older(const MetricRow& row) {
  const double time = *row.value(kTimeTag);
  first_time_ = std::min(first_time_, time);
  last_time_ = std::max(last_time_, time);
  auto& newest = newest_[static_cast<size_t>(row.kind)];
  if (!newest) newest = row;

  if (!row.event.empty()) {
    ++event_count_;
    if (events_.size() < kMaxEvents) events_.push_back(row);
    if (row.event == "start") {
      superseded_from_ = std::min(superseded_from_, row.step + 1);
      if (later_ && later_->run_id == row.run_id)
        attempts_.back().first_step = std::min(row.step + 1, attempts_.back().last_step);
    }
  } else if (row.kind != RowKind::kEvent) {
    if (starts_earlier_attempt(row)) {
      if (attempt_count_ > 0) superseded_from_ = std::min(superseded_from_, attempts_.back().first_step);
      if (++attempt_count_ <= kMaxAttempts) attempts_.emplace_back();
      attempts_.back() = {row.step, row.step, time};
    }
    Attempt& attempt = attempts_.back();
    attempt.first_step = std::min(attempt.first_step, row.step);
    attempt.last_step = std::max(attempt.last_step, row.step);
    attempt.first_time = std::min(attempt.first_time, time);
    const auto resumed = row.value(kResumeStepTag);
    if (resumed && *resumed >= 0 && *resumed < static_cast<double>(row.step))
      attempt.first_step = static_cast<int64_t>(*resumed) + 1;
    later_ = row;
  }

  const bool superseded = row.step >= superseded_from_;
  (superseded ? superseded_ : current_)[static_cast<size_t>(row.kind)].add(row.step, row.values);
  if (superseded) return;
  for (const int tag : {kLossTag, kValidationLossTag, kGradNormTag}) {
    const auto value = row.value(tag);
    if (value && !std::isfinite(*value))
      first_non_finite_ = std::min(first_non_finite_.value_or(row.step), row.step);
  }
}

const MetricRow* RunHistory::newest(RowKind kind) const {
  const auto& row = newest_[static_cast<size_t>(kind)];
  return row ? &*row : nullptr;
}

}  // namespace hyperion::report
