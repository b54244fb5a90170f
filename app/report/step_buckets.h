// A long series of rows in bounded memory: rows of neighbouring steps share a bucket, which keeps the
// smallest, the largest and the mean value of every tag. No I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

namespace hyperion::report {

// Of one tag in one bucket. NaN and infinities are counted and left out of the rest.
struct ValueRange {
  double sum = 0;
  double smallest = std::numeric_limits<double>::infinity();
  double largest = -std::numeric_limits<double>::infinity();
  uint64_t count = 0;
  uint64_t non_finite = 0;

  double mean() const { return sum / static_cast<double>(count); }  // NaN of no value
  void add(double value);
  void add(const ValueRange& other);
};

class StepBuckets {
 public:
  struct Bucket {
    ValueRange steps;                // of the rows
    std::vector<ValueRange> values;  // by tag

    // Without values where the bucket has none of the tag.
    const ValueRange& range(int tag) const;
    void add(const Bucket& other);
  };

  explicit StepBuckets(size_t max_buckets = 1024) : max_(max_buckets) {}

  // Rows come in any order. A bucket is `width()` steps wide, a power of two that doubles when there would be
  // more than max_buckets: the result does not depend on the order. step >= 0.
  void add(int64_t step, const std::vector<std::pair<int, double>>& values);

  // Makes the buckets wider until there are at most as many.
  void limit(size_t max_buckets);

  int64_t width() const { return width_; }
  bool empty() const { return buckets_.empty(); }
  const std::map<int64_t, Bucket>& buckets() const { return buckets_; }  // by step / width()
  // Whether any bucket has a value, finite or not, of the tag.
  bool has(int tag) const;

 private:
  size_t max_;
  int64_t width_ = 1;
  std::map<int64_t, Bucket> buckets_;
};

}  // namespace hyperion::report
