#include "trainer/engine/finite_guard.h"

#include <cmath>

#include <fmt/format.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/stack.h>

#include "base/counted.h"
#include "base/error.h"
#include "base/log.h"

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
  const at::Tensor agreed_norm = agree_on_norm ? agreed.select(0, kNorm) : norm;
  std::vector<at::Tensor> report = {agreed.narrow(0, 0, kNorm), all};
  at::Tensor skips = agreed.select(0, kSkip);
  if (rules_.above_norm > 0) {  // every rank has the same norm, and so the same answer
    const at::Tensor excess = norms_.excess(agreed_norm, rules_.above_norm).to(at::kFloat);
    skips = at::maximum(skips, excess.gt(0).to(at::kFloat));
    norms_.add(own.step, agreed_norm, skips);
    report.push_back(excess.unsqueeze(0));
  }
  previous_ = std::move(current_);
  current_ = {own.step, at::cat(report).to(at::kCPU, /*non_blocking=*/true), {}, std::move(describe)};
  current_.copied.record(DeviceStream::current(norm.device()));
  return {skips, agreed_norm};
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
  const bool watches_norms = rules_.above_norm > 0;
  const int64_t end = check.values.numel() - (watches_norms ? 1 : 0);  // of the losses
  const auto all_sequences = [&] {
    std::string text;
    for (int64_t i = kLosses; i < end; ++i) text += " " + check.describe(static_cast<size_t>(i - kLosses));
    return text;
  };
  if (values[kSkip] == 0.0F) {
    if (watches_norms && values[end] > 0)
      leave_out(
          check.step,
          fmt::format("its gradient norm {} is {:.1f} standard deviations above the mean of the {} before "
                      "it; this rank's sequences were{}",
                      values[kNorm], values[end], counted(rules_.window, "step"), all_sequences()));
    return;
  }
  if (std::isinf(values[kScale])) throw_data("training: none of the step's tokens has a label to learn from");
  std::string where;
  for (int64_t i = kLosses; i < end; ++i)
    if (!std::isfinite(values[i]))
      where += fmt::format("; loss {} on {}", values[i], check.describe(static_cast<size_t>(i - kLosses)));
  if (end == kLosses) {
    where = "; the ranks of the last pipeline stage have the losses, and say whose sequences they are of";
  } else if (where.empty()) {
    where = "; this rank's losses are finite; its sequences were" + all_sequences();
  }
  if (rules_.non_finite)
    return leave_out(check.step, fmt::format("the loss or the gradient norm is not finite (norm {}){}",
                                             values[kNorm], where));
  throw_non_finite(
      "step {}: the loss or the gradient norm is not finite (norm {}){}. The weights are those "
      "before this step. Look at these documents, lower optimizer.lr, or resume from an earlier state",
      check.step, values[kNorm], where);
}

void FiniteGuard::leave_out(int64_t step, const std::string& reason) {
  if (!recent_.empty() && recent_.back() >= step) return;  // read twice
  ++skipped_;
  recent_.push_back(step);
  while (recent_.front() <= step - rules_.window) recent_.pop_front();
  if (static_cast<int64_t>(recent_.size()) > rules_.max_skipped)
    throw_non_finite(
        "step {}: {}. {} of the last {} were left out, and training.max_skipped_steps is {}: look at these "
        "documents, lower optimizer.lr, or resume from an earlier state",
        step, reason, recent_.size(), counted(rules_.window, "step"), rules_.max_skipped);
  log_warning("step {} is left out: {}. {} of the last {} were left out; more than {} end the job", step,
              reason, recent_.size(), counted(rules_.window, "step"), rules_.max_skipped);
  if (on_skip) on_skip(step, reason);
}

void FiniteGuard::restore(int64_t step, const SkipState& state) {
  skipped_ = state.skipped;
  norms_.restore(step, state.norms);
  recent_.assign(state.recent.begin(), state.recent.end());
}

}  // namespace hyperion::trainer
