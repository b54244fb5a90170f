#include "app/report/step_buckets.h"

#include <algorithm>
#include <cmath>

namespace hyperion::report {

void ValueRange::add(double value) {
  if (!std::isfinite(value)) {
    ++non_finite;
    return;
  }
  sum += value;
  smallest = std::min(smallest, value);
  largest = std::max(largest, value);
  ++count;
}

void ValueRange::add(const ValueRange& other) {
  sum += other.sum;
  smallest = std::min(smallest, other.smallest);
  largest = std::max(largest, other.largest);
  count += other.count;
  non_finite += other.non_finite;
}

const ValueRange* StepBuckets::Bucket::range(int tag) const {
  const auto index = static_cast<size_t>(tag);
  return index < values.size() && values[index].count > 0 ? &values[index] : nullptr;
}

void StepBuckets::Bucket::add(const Bucket& other) {
  first_step = std::min(first_step, other.first_step);
  last_step = std::max(last_step, other.last_step);
  step_sum += other.step_sum;
  rows += other.rows;
  values.resize(std::max(values.size(), other.values.size()));
  for (size_t i = 0; i < other.values.size(); ++i) values[i].add(other.values[i]);
}

void StepBuckets::add(int64_t step, const std::vector<std::pair<int, double>>& values) {
  Bucket row{step, step, static_cast<double>(step), 1, {}};
  for (const auto& [tag, value] : values) {
    if (row.values.size() <= static_cast<size_t>(tag)) row.values.resize(static_cast<size_t>(tag) + 1);
    row.values[static_cast<size_t>(tag)].add(value);
  }
  const auto [place, added] = buckets_.try_emplace(step / width_, row);
  if (!added) place->second.add(row);
  limit(most_);
}

void StepBuckets::limit(size_t most_buckets) {
  most_ = most_buckets;
  while (buckets_.size() > most_) double_width();
}

void StepBuckets::double_width() {
  width_ *= 2;
  std::map<int64_t, Bucket> merged;
  for (auto& [index, bucket] : buckets_) {
    const auto [place, added] = merged.try_emplace(index / 2, std::move(bucket));
    if (!added) place->second.add(bucket);
  }
  buckets_ = std::move(merged);
}

bool StepBuckets::has(int tag) const {
  return std::any_of(buckets_.begin(), buckets_.end(), [&](const auto& entry) {
    const auto& values = entry.second.values;
    const auto index = static_cast<size_t>(tag);
    return index < values.size() && values[index].count + values[index].non_finite > 0;
  });
}

}  // namespace hyperion::report
