#include "trainer/engine/norm_history.h"

#include <algorithm>

#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

namespace hyperion::trainer {

at::Tensor NormHistory::excess(const at::Tensor& norm, double limit) {
  const at::Tensor own = norm.to(at::kDouble);
  if (!norms_.defined()) return at::zeros({}, own.options());
  norms_ = norms_.to(own.device());
  const at::Tensor known = norms_.ge(0), count = known.sum(at::kDouble);
  const at::Tensor mean = at::where(known, norms_, 0).sum() / count;
  const at::Tensor variance = at::where(known, (norms_ - mean).square(), 0).sum() / count;
  const at::Tensor deviations = (own - mean) / variance.sqrt();
  const at::Tensor exceeds =
      count.ge(static_cast<double>(window_) / 2).logical_and(deviations.gt(limit)).logical_and(own.gt(mean));
  return at::where(exceeds, deviations, 0);
}

void NormHistory::add(int64_t step, const at::Tensor& norm, const at::Tensor& skip) {
  const at::Tensor own = norm.to(at::kDouble);
  if (!norms_.defined()) norms_ = at::full({window_}, kNone, own.options());
  norms_.select(0, index(step)).copy_(at::where(skip.ne(0), kNone, own));
}

std::vector<double> NormHistory::values(int64_t step) const {
  if (!norms_.defined()) return {};
  const at::Tensor host = norms_.to(at::kCPU);
  std::vector<double> values;
  for (int64_t i = std::max<int64_t>(0, step - window_ + 1); i <= step; ++i)
    values.push_back(host.const_data_ptr<double>()[index(i)]);
  return values;
}

void NormHistory::restore(int64_t step, const std::vector<double>& values) {
  if (values.empty()) return;
  norms_ = at::full({window_}, kNone, at::TensorOptions(at::kDouble));
  const auto count = std::min({window_, static_cast<int64_t>(values.size()), step + 1});
  for (int64_t i = 0; i < count; ++i)
    norms_.data_ptr<double>()[index(step - i)] = values[values.size() - 1 - static_cast<size_t>(i)];
}

}  // namespace hyperion::trainer
