#include "trainer/finite_guard.h"

#include <cmath>

#include <fmt/format.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include "base/error.h"

namespace hyperion::trainer {

at::Tensor FiniteGuard::check(int64_t step, const std::vector<at::Tensor>& losses, const at::Tensor& norm,
                              std::function<std::string(size_t)> describe) {
  std::vector<at::Tensor> values = {norm.to(at::kFloat)};
  for (const at::Tensor& loss : losses) values.push_back(loss.to(norm.device(), at::kFloat));
  const at::Tensor all = at::stack(values);
  const at::Tensor skip = all.isfinite().all().logical_not().to(at::kFloat);
  group_.all_reduce_max(skip);
  previous_ = std::move(current_);
  current_ = {
      step, at::cat({skip.view({1}), all}).to(at::kCPU, /*non_blocking=*/true), {}, std::move(describe)};
  current_.copied.record(DeviceStream::current(norm.device()));
  return skip;
}

void FiniteGuard::raise(bool wait) {
  raise(previous_);
  if (wait || !current_.copied.recorded()) raise(current_);
}

void FiniteGuard::raise(Verdict& verdict) const {
  if (!verdict.values.defined()) return;
  verdict.copied.wait_on_host();
  const float* values = verdict.values.data_ptr<float>();
  if (values[0] == 0.0F) return;
  std::string where;
  for (int64_t i = 2; i < verdict.values.numel(); ++i)
    if (!std::isfinite(values[i]))
      where += fmt::format("; loss {} on {}", values[i], verdict.describe(static_cast<size_t>(i - 2)));
  if (where.empty()) {
    where = "; this rank's losses are finite; its sequences were";
    for (int64_t i = 2; i < verdict.values.numel(); ++i)
      where += " " + verdict.describe(static_cast<size_t>(i - 2));
  }
  throw Error(
      ExitCode::kNonFinite,
      fmt::format(
          "step {}: the loss or the gradient norm is not finite (norm {}){}. The weights are those "
          "before this step. Look at these documents, lower optimizer.lr, or resume from an earlier state",
          verdict.step, values[1], where));
}

}  // namespace hyperion::trainer
