// Differences between the values of two tensors of one shape.
#pragma once

#include <cstddef>
#include <cstdint>

#include "checkpoint/types/dtype.h"

namespace hyperion::checkpoint {

// Sums up pieces of two tensors, a and b, as they are streamed.
class ValueDifference {
 public:
  ValueDifference(Dtype a, Dtype b) : a_(a), b_(b) {}

  // The next `count` elements of both. The types must be equal, or both floating-point.
  void add(const std::byte* a, const std::byte* b, uint64_t count);

  // Elements that differ: in bits where both have one type, else in value.
  uint64_t different() const { return different_; }
  bool is_float() const;                       // else the figures below have no meaning
  double max_abs() const { return max_abs_; }  // NaN when one side alone is NaN or infinite somewhere
  double relative_l2() const;                  // |a - b| / |a|; infinite for a = 0

 private:
  void add_numbers(const double* a, const double* b, uint64_t count);

  Dtype a_, b_;
  uint64_t different_ = 0;
  double max_abs_ = 0, square_ = 0, square_a_ = 0;
};

}  // namespace hyperion::checkpoint
