// StepBuckets keeps a long series of rows in bounded memory: rows of neighbouring steps share a bucket, which
// keeps the smallest, the largest and the mean value of every tag. No I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

namespace hyperion::report {

// The values of one tag in one bucket. Non-finite values are counted, but excluded from the other figures.
struct ValueRange {
  double sum = 0;
  double smallest = std::numeric_limits<double>::infinity();
  double largest = -std::numeric_limits<double>::infinity();
  uint64_t count = 0;
  uint64_t non_finite = 0;

  double mean() const { return sum / static_cast<double>(count); }  // NaN without values
  void add(double value);
  void add(const ValueRange& other);
};

class StepBuckets {
 public:
  struct Bucket {
    ValueRange steps;                // steps of the rows
    std::vector<ValueRange> values;  // by tag

    // Returns the tag's values, an empty range if the bucket has none.
    const ValueRange& range(int tag) const;
    void add(const Bucket& other);
  };

  explicit StepBuckets(size_t max_buckets = 1024) : max_(max_buckets) {}

  // Adds a row with step >= 0, in any order. A bucket is `width()` steps wide, a power of two that doubles if
  // there would be more than max_buckets, so the result does not depend on the order.
  void add(int64_t step, const std::vector<std::pair<int, double>>& values);

  // Adds a bucket of another StepBuckets at its smallest step.
  void add(const Bucket& bucket);

  // Removes and returns the buckets with rows of `step` or later ones.
  std::vector<Bucket> take_from(int64_t step);

  // Widens the buckets until there are at most `max_buckets`.
  void limit(size_t max_buckets);

  int64_t width() const { return width_; }
  bool empty() const { return buckets_.empty(); }
  const std::map<int64_t, Bucket>& buckets() const { return buckets_; }  // by step / width()
  // Returns whether any bucket has a value of the tag, finite or not.
  bool has(int tag) const;

 private:
  size_t max_;
  int64_t width_ = 1;
  std::map<int64_t, Bucket> buckets_;
};

}  // namespace hyperion::report
