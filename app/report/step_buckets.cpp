#include "app/report/step_buckets.h"

#include <algorithm>
#include <cmath>

namespace hyperion::report {

void ValueRange::add(double value) {
  if (std::isfinite(value))
    add({value, value, value, 1});
  else
    ++non_finite;
}

void ValueRange::add(const ValueRange& other) {
  sum += other.sum;
  smallest = std::min(smallest, other.smallest);
  largest = std::max(largest, other.largest);
  count += other.count;
  non_finite += other.non_finite;
}

const ValueRange& StepBuckets::Bucket::range(int tag) const {
  static const ValueRange kNone;
  const auto index = static_cast<size_t>(tag);
  return index < values.size() ? values[index] : kNone;
}

void StepBuckets::Bucket::add(const Bucket& other) {
  steps.add(other.steps);
  values.resize(std::max(values.size(), other.values.size()));
  for (size_t i = 0; i < other.values.size(); ++i) values[i].add(other.values[i]);
}

void StepBuckets::add(int64_t step, const std::vector<std::pair<int, double>>& values) {
  Bucket& bucket = buckets_[step / width_];
  bucket.steps.add(static_cast<double>(step));
  for (const auto& [tag, value] : values) {
    const auto index = static_cast<size_t>(tag);
    bucket.values.resize(std::max(bucket.values.size(), index + 1));
    bucket.values[index].add(value);
  }
  limit(max_);
}

void StepBuckets::add(const Bucket& bucket) {
  buckets_[static_cast<int64_t>(bucket.steps.smallest) / width_].add(bucket);
  limit(max_);
}

std::vector<StepBuckets::Bucket> StepBuckets::take_from(int64_t step) {
  auto first = buckets_.lower_bound(step / width_);
  if (first != buckets_.end() && first->second.steps.largest < static_cast<double>(step)) ++first;
  std::vector<Bucket> taken;
  for (auto bucket = first; bucket != buckets_.end(); ++bucket) taken.push_back(std::move(bucket->second));
  buckets_.erase(first, buckets_.end());
  return taken;
}

void StepBuckets::limit(size_t max_buckets) {
  max_ = max_buckets;
  while (buckets_.size() > max_) {
    width_ *= 2;
    std::map<int64_t, Bucket> merged;
    for (const auto& [index, bucket] : buckets_) merged[index / 2].add(bucket);
    buckets_ = std::move(merged);
  }
}

bool StepBuckets::has(int tag) const {
  return std::ranges::any_of(buckets_, [&](const auto& entry) {
    const ValueRange& range = entry.second.range(tag);
    return range.count + range.non_finite > 0;
  });
}

}  // namespace hyperion::report
