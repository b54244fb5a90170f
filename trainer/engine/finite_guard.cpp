#include "trainer/engine/finite_guard.h"

#include <cmath>

#include <fmt/format.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>

#include "base/error.h"

namespace hyperion::trainer {
namespace {

// Indices of a check's values.
enum ValueIndex { kSkip, kStop, kSaveFailed, kNorm, kScale, kLosses };

}  // namespace

FiniteGuard::Outcome FiniteGuard::check(const StepFlags& own, const std::vector<at::Tensor>& losses,
                                        const at::Tensor& norm, const at::Tensor& scale,
                                        std::function<std::string(size_t)> describe) {
  std::vector<at::Tensor> values = {norm.to(at::kFloat), scale.to(norm.device())};
  for (const at::Tensor& loss : losses) values.push_back(loss.to(norm.device(), at::kFloat));
  const at::Tensor all = at::stack(values);
  const at::Tensor skip = all.isfinite().all().logical_not().to(at::kFloat);
  const auto flag = [&](int value) { return at::full({}, value, skip.options()); };
  const bool agree_on_norm = !norm.is_cpu();
  std::vector<at::Tensor> maxima = {skip, flag(static_cast<int>(own.stop)), flag(own.save_failed)};
  if (agree_on_norm) maxima.push_back(values[0]);
  const at::Tensor agreed = at::stack(maxima);
  groups_.all_reduce_max(agreed);
  const at::Tensor flags = agreed.narrow(0, 0, kNorm);
  previous_ = std::move(current_);
  current_ = {own.step, at::cat({flags, all}).to(at::kCPU, /*non_blocking=*/true), {}, std::move(describe)};
  current_.copied.record(DeviceStream::current(norm.device()));
  return {flags.select(0, kSkip), agree_on_norm ? agreed.select(0, kNorm) : norm};
}

void FiniteGuard::raise(bool wait) {
  raise(previous_);
  if (wait || !current_.copied.recorded()) raise(current_);
}

void FiniteGuard::raise(StepCheck& check) {
  if (!check.values.defined()) return;
  check.copied.wait_on_host();
  const float* values = check.values.data_ptr<float>();
  if (check.step > agreed_.step)
    agreed_ = {check.step, static_cast<StopSignal>(static_cast<int>(values[kStop])),
               values[kSaveFailed] != 0};
  if (values[kSkip] == 0.0F) return;
  if (std::isinf(values[kScale])) throw_data("training: none of the step's tokens has a label to learn from");
  std::string where;
  for (int64_t i = kLosses; i < check.values.numel(); ++i)
    if (!std::isfinite(values[i]))
      where += fmt::format("; loss {} on {}", values[i], check.describe(static_cast<size_t>(i - kLosses)));
  if (check.values.numel() == kLosses) {
    where = "; the ranks of the last pipeline stage have the losses, and say whose sequences they are of";
  } else if (where.empty()) {
    where = "; this rank's losses are finite; its sequences were";
    for (int64_t i = kLosses; i < check.values.numel(); ++i)
      where += " " + check.describe(static_cast<size_t>(i - kLosses));
  }
  throw_non_finite(
      "step {}: the loss or the gradient norm is not finite (norm {}){}. The weights are those "
      "before this step. Look at these documents, lower optimizer.lr, or resume from an earlier state",
      check.step, values[kNorm], where);
}

}  // namespace hyperion::trainer
