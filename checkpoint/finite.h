// Numbers that are NaN or infinite. No checkpoint is written with one, and nothing is started from one.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/types/dtype.h"

namespace hyperion::checkpoint {

// How many of the numbers in `bytes` bytes at `data` (of any alignment) are NaN or infinite; the parts of a
// complex number count apart. 0 for types that have no such numbers.
uint64_t count_not_finite(Dtype dtype, const void* data, uint64_t bytes);

// The tensors scanned so far that hold such numbers.
class NotFinite {
 public:
  // Scans one piece of a tensor. Returns how many it found.
  uint64_t scan(const std::string& tensor, Dtype dtype, const void* data, uint64_t bytes);
  void add(const std::string& tensor, uint64_t count);

  bool empty() const { return tensors_.empty(); }
  uint64_t total() const;  // numbers
  const std::vector<std::pair<std::string, uint64_t>>& tensors() const { return tensors_; }
  // "norm.weight (3 numbers), ema.norm.weight (1 number) and 4 more tensors"
  std::string text() const;

 private:
  std::vector<std::pair<std::string, uint64_t>> tensors_;  // name, count; in the order they were found
};

}  // namespace hyperion::checkpoint
