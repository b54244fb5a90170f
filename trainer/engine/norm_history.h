// The gradient norms of the last steps, by which a step with a far larger one is recognised.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace hyperion::trainer {

class NormHistory {
 public:
  explicit NormHistory(int64_t window) : window_(window) {}

  // Returns by how many standard deviations `norm` (0-dim) is above the mean of the norms before `step`, if
  // that is more than `limit`; else 0 (0-dim double). It is 0 while there are fewer norms than half a window.
  // Nothing waits for the device.
  at::Tensor excess(const at::Tensor& norm, double limit);
  // Keeps the norm of a step; `skip` (0-dim, 0 or 1) tells whether its update was left out, and its norm is
  // left out then too.
  void add(int64_t step, const at::Tensor& norm, const at::Tensor& skip);

  // The norms that are kept, of the steps up to `step` in order; kNone for a step without one. Waits for the
  // device.
  static constexpr double kNone = -1;
  std::vector<double> values(int64_t step) const;
  // Takes such a list, of which a shorter window keeps the end.
  void restore(int64_t step, const std::vector<double>& values);

 private:
  int64_t index(int64_t step) const { return step % window_; }

  int64_t window_;
  at::Tensor norms_;  // [window], double, by step % window; undefined before the first norm
};

}  // namespace hyperion::trainer
