#include "trainer/optim/adam.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace hyperion {
namespace {

std::vector<at::Tensor> pick(const std::vector<at::Tensor>& all, const std::vector<size_t>& which) {
  std::vector<at::Tensor> picked;
  picked.reserve(which.size());
  for (size_t i : which) picked.push_back(all[i]);
  return picked;
}

}  // namespace

Adam::Adam(std::vector<ShardedParameterPtr> parameters, const AdamOptions& options)
    : options_(options), parameters_(std::move(parameters)) {
  for (const ShardedParameterPtr& parameter : parameters_) {
    masters_.push_back(parameter->master());
    grads_.push_back(parameter->grad());
    exp_avg_.push_back(at::zeros_like(parameter->master()));
    exp_avg_sq_.push_back(at::zeros_like(parameter->master()));
    if (parameter->master().numel() > 0) filled_.push_back(masters_.size() - 1);
  }
  step_ = at::zeros({}, masters_.front().options().dtype(at::kFloat).pinned_memory(false));
}

void Adam::step(double lr, const at::Tensor& skip) {
  at::NoGradGuard no_grad;
  step_.add_(1 - skip);
  if (!filled_.empty()) {
    switch (options_.implementation) {
      case AdamOptions::Implementation::kFused:
        fused(lr, skip);
        break;
      case AdamOptions::Implementation::kForeach:
        foreach (filled_, lr, skip)
          ;
        break;
      case AdamOptions::Implementation::kForLoop:
        for (size_t i : filled_)
          foreach ({i}, lr, skip)
            ;
        break;
    }
  }
  std::vector<at::Tensor> copies, sources;
  for (size_t i : filled_) {
    if (!parameters_[i]->has_separate_compute_shard()) continue;
    copies.push_back(parameters_[i]->compute_shard());
    sources.push_back(masters_[i]);
  }
  if (!copies.empty()) at::_foreach_copy_(copies, sources, /*non_blocking=*/true);
}

void Adam::fused(double lr, const at::Tensor& skip) {
  std::vector<at::Tensor> masters = pick(masters_, filled_), grads = pick(grads_, filled_);
  std::vector<at::Tensor> exp_avg = pick(exp_avg_, filled_), exp_avg_sq = pick(exp_avg_sq_, filled_);
  const std::vector<at::Tensor> steps(filled_.size(), step_);
  auto update = [&](auto kernel) {
    kernel(masters, grads, exp_avg, exp_avg_sq, at::TensorList{}, steps, lr, options_.beta1, options_.beta2,
           options_.weight_decay, options_.eps, /*amsgrad=*/false, /*maximize=*/false,
           /*grad_scale=*/std::nullopt,
           /*found_inf=*/skip);
  };
  if (options_.decoupled_decay)
    update([](auto&&... args) { at::_fused_adamw_(args...); });
  else
    update([](auto&&... args) { at::_fused_adam_(args...); });
}

// The plain form: factors become neutral where `skip` is 1 (gradients count as zero, decay and momentum
// factors are 1, the step size is 0).
void Adam::foreach (const std::vector<size_t>& which, double lr, const at::Tensor& skip) {
  std::vector<at::Tensor> masters = pick(masters_, which), grads = pick(grads_, which);
  std::vector<at::Tensor> exp_avg = pick(exp_avg_, which), exp_avg_sq = pick(exp_avg_sq_, which);
  const at::Tensor skipped = skip.ne(0), go = 1 - skip;
  if (options_.decoupled_decay)
    at::_foreach_mul_(masters, 1 - go * (lr * options_.weight_decay));
  else if (options_.weight_decay != 0)
    at::_foreach_add_(grads, masters, options_.weight_decay);
  for (at::Tensor& grad : grads) grad.masked_fill_(skipped, 0);
  at::_foreach_mul_(exp_avg, 1 - go * (1 - options_.beta1));
  at::_foreach_add_(exp_avg, grads, 1 - options_.beta1);
  at::_foreach_mul_(exp_avg_sq, 1 - go * (1 - options_.beta2));
  at::_foreach_addcmul_(exp_avg_sq, grads, grads, 1 - options_.beta2);
  const at::Tensor steps = step_.clamp_min(1);
  const at::Tensor correction1 = 1 - at::pow(options_.beta1, steps);
  const at::Tensor correction2 = (1 - at::pow(options_.beta2, steps)).sqrt_();
  std::vector<at::Tensor> denominator = at::_foreach_sqrt(exp_avg_sq);
  at::_foreach_mul_(denominator, correction2.reciprocal());
  at::_foreach_add_(denominator, options_.eps);
  std::vector<at::Tensor> update = at::_foreach_div(exp_avg, denominator);
  at::_foreach_mul_(update, go * (-lr) / correction1);
  at::_foreach_add_(masters, update);
}

}  // namespace hyperion
