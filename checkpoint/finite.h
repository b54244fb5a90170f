// Finds NaN and infinite numbers. No checkpoint is written with one, and no job starts from one.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/types/dtype.h"

namespace hyperion::checkpoint {

// Counts the NaN and infinite numbers in `bytes` bytes at `data` (of any alignment). The parts of a complex
// number count separately. 0 for types without such numbers.
uint64_t count_not_finite(Dtype dtype, const void* data, uint64_t bytes);

// Collects the tensors that hold NaN or infinite numbers.
class NotFinite {
 public:
  // Scans one piece of a tensor. Returns the count.
  uint64_t scan(const std::string& tensor, Dtype dtype, const void* data, uint64_t bytes);
  void add(const std::string& tensor, uint64_t count);

  bool empty() const { return tensors_.empty(); }
  uint64_t total() const;  // count over all tensors
  const std::vector<std::pair<std::string, uint64_t>>& tensors() const { return tensors_; }
  // "norm.weight (3 numbers), ema.norm.weight (1 number) and 4 more tensors"
  std::string text() const;

 private:
  std::vector<std::pair<std::string, uint64_t>> tensors_;  // name and count, in scan order
};

}  // namespace hyperion::checkpoint
