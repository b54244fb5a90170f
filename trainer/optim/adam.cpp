#include "trainer/optim/adam.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
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

#include "base/error.h"
#include "models/kernels/kernels.h"

namespace hyperion::optim {

Adam::Adam(const std::vector<parallel::ShardedParameterPtr>& parameters,
           const config::JobConfig::Optimizer& options, uint64_t seed)
    : Optimizer(parameters), options_(options) {
  const bool rounds = state_dtype(options).has_value();
  for (const parallel::ShardedParameterPtr& parameter : parameters) {
    const at::Tensor& master = parameter->master();
    const bool trainable = parameter->parameter().trainable;
    const std::vector<at::Tensor>& moments =
        add_states(trainable ? kinds(options) : std::vector<StateKind>(), master);
    if (!trainable || master.numel() == 0) continue;
    const Parameter& described = parameter->parameter();
    Update& update = update_with(settings_of(options, described.fqn, described.shape.size()));
    kernels::AdamTensors& tensors = update.tensors;
    update.keys.push_back(rounding_key(described.fqn, seed));
    update.indices.push_back(kernels::indices_of(described.shape, parameter->box()));
    tensors.weights.push_back(master);
    tensors.grads.push_back(parameter->grad());
    tensors.exp_avgs.push_back(moments[0]);
    tensors.exp_avg_sqs.push_back(moments[1]);
    const bool copies = parameter->has_separate_compute_shard();
    const bool together = copies && parameter->compute_shard().is_contiguous();
    const bool in_pass = together && (!rounds || (parameter->compute_shard().device() == master.device() &&
                                                  parameter->compute_shard().scalar_type() == at::kBFloat16));
    tensors.copies.push_back(in_pass ? parameter->compute_shard() : at::Tensor());
    if (rounds && in_pass) continue;  // written with the states
    if (together) {
      masters_to_copy_.push_back(master);
      compute_shards_.push_back(parameter->compute_shard());
    } else if (copies) {
      shards_with_gaps_.push_back(parameter);
    }
  }
  if (rounds) return;
  const auto takes = [](const Update& update) { return kernels::takes_adam_update(update.tensors); };
  if (options.implementation == config::OptimizerImplementation::kFused && !updates_.empty() &&
      std::ranges::all_of(updates_, takes))
    one_pass_ = kernels::table().adam_update;
}

Adam::Update& Adam::update_with(const ParameterSettings& settings) {
  const bool one_by_one = options_.implementation == config::OptimizerImplementation::kForLoop;
  const auto found = std::ranges::find(updates_, settings, &Update::settings);
  return found == updates_.end() || one_by_one ? updates_.emplace_back(Update{{}, settings}) : *found;
}

std::vector<std::pair<const char*, checkpoint::Object>> Adam::settings(const Parameter& parameter) const {
  const ParameterSettings own = settings_of(options_, parameter.fqn, parameter.shape.size());
  return {{"betas", checkpoint::Object::tuple({own.beta1, own.beta2})},
          {"eps", options_.eps},
          {"weight_decay", own.weight_decay},
          {"amsgrad", false},
          {"maximize", false},
          {"foreach", options_.implementation == config::OptimizerImplementation::kForeach},
          {"capturable", false},
          {"differentiable", false},
          {"fused", options_.implementation == config::OptimizerImplementation::kFused},
          {"decoupled_weight_decay", options_.name != config::OptimizerName::kAdam}};
}

bool Adam::divides_gradients() const {
  return options_.implementation == config::OptimizerImplementation::kFused;
}

void Adam::step(double lr, const at::Tensor& skip, const std::optional<at::Tensor>& divisor) {
  if (divisor && !divides_gradients()) throw_bug("this optimizer divides no gradients");
  at::NoGradGuard no_grad;
  if (counts_) step_.add_(1 - skip);
  if (one_pass_ != nullptr) {
    if (skip.item<float>() != 0) return;
    for (const Update& update : updates_) update_in_one_pass(update, lr, divisor);
    copy_to_shards_with_gaps();
    return;
  }
  for (Update& update : updates_) {
    if (state_dtype(options_))
      update_rounded(update, lr, skip, divisor);
    else if (options_.implementation == config::OptimizerImplementation::kFused)
      update_fused(update, lr, skip, divisor);
    else
      update_by_formula(update, lr, skip);
  }
  if (!compute_shards_.empty()) at::_foreach_copy_(compute_shards_, masters_to_copy_, /*non_blocking=*/true);
  copy_to_shards_with_gaps();
}

// A copy of many tensors by one kernel takes none with gaps.
void Adam::copy_to_shards_with_gaps() const {
  for (const parallel::ShardedParameterPtr& parameter : shards_with_gaps_)
    parameter->compute_shard().copy_(parameter->master(), /*non_blocking=*/true);
}

void Adam::update_fused(Update& group, double lr, const at::Tensor& skip,
                        const std::optional<at::Tensor>& divisor) const {
  kernels::AdamTensors& tensors = group.tensors;
  const ParameterSettings& settings = group.settings;
  const std::vector<at::Tensor> steps(tensors.weights.size(), step_);
  const auto scale = divisor ? std::optional(divisor->to(step_.options())) : std::nullopt;
  const auto update = [&](auto fused_kernel) {
    fused_kernel(tensors.weights, tensors.grads, tensors.exp_avgs, tensors.exp_avg_sqs,
                 /*max_exp_avg_sqs=*/at::TensorList{}, steps, lr * settings.lr_scale, settings.beta1,
                 settings.beta2, settings.weight_decay, options_.eps, /*amsgrad=*/false, /*maximize=*/false,
                 /*grad_scale=*/scale, /*found_inf=*/skip);
  };
  if (options_.name != config::OptimizerName::kAdam)
    update([](auto&&... args) { at::_fused_adamw_(args...); });
  else
    update([](auto&&... args) { at::_fused_adam_(args...); });
}

// Every implementation computes the same bits: fused in one pass, the others by operations of libtorch.
void Adam::update_rounded(const Update& update, double lr, const at::Tensor& skip,
                          const std::optional<at::Tensor>& divisor) const {
  const ParameterSettings& settings = update.settings;
  const auto& [weights, grads, exp_avgs, exp_avg_sqs, copies] = update.tensors;
  const kernels::RoundedAdamStep step = {.lr = lr * settings.lr_scale,
                                         .beta1 = settings.beta1,
                                         .beta2 = settings.beta2,
                                         .eps = options_.eps,
                                         .weight_decay = settings.weight_decay,
                                         .decoupled = options_.name != config::OptimizerName::kAdam,
                                         .updates = step_,
                                         .skip = skip.to(step_.options()),
                                         .divisor = divisor ? divisor->to(step_.options()) : at::Tensor()};
  const kernels::RoundedAdamTensors tensors = {weights, grads,       exp_avgs,      exp_avg_sqs,
                                               copies,  update.keys, update.indices};
  if (options_.implementation == config::OptimizerImplementation::kFused)
    kernels::table().rounded_adam(step, tensors);
  else
    kernels::plain::rounded_adam(step, tensors);
}

void Adam::update_in_one_pass(const Update& update, double lr,
                              const std::optional<at::Tensor>& divisor) const {
  const ParameterSettings& settings = update.settings;
  one_pass_(update.tensors, {.lr = lr * settings.lr_scale,
                             .beta1 = settings.beta1,
                             .beta2 = settings.beta2,
                             .eps = options_.eps,
                             .weight_decay = settings.weight_decay,
                             .decoupled = options_.name != config::OptimizerName::kAdam,
                             .updates = step_.item<double>(),
                             .divisor = divisor ? divisor->item<double>() : 1.0});
}

// The formulas use the notation of PyTorch's documentation, with learning rate gamma and weight decay lambda:
//
//   AdamW: theta <- theta - gamma lambda theta        Adam: g <- g + lambda theta
//   m <- beta1 m + (1 - beta1) g
//   v <- beta2 v + (1 - beta2) g^2
//   theta <- theta - gamma (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
//
// If `skip` is 1, every factor becomes neutral without waiting for the device: the gradient counts as 0, the
// factors of theta, m and v are 1, and the step size is 0.
void Adam::update_by_formula(Update& group, double lr, const at::Tensor& skip) const {
  auto& [theta, g, m, v, copies] = group.tensors;
  const double beta1 = group.settings.beta1, beta2 = group.settings.beta2,
               lambda = group.settings.weight_decay;
  lr *= group.settings.lr_scale;
  const at::Tensor not_skipped = 1 - skip;  // 1, or 0 where the update is skipped
  if (options_.name != config::OptimizerName::kAdam)
    at::_foreach_mul_(theta, 1 - not_skipped * (lr * lambda));
  else if (lambda != 0)
    at::_foreach_add_(g, theta, lambda);
  const at::Tensor skipped = skip.ne(0);
  for (at::Tensor& grad : g) grad.masked_fill_(skipped, 0);  // a product with 0 would keep NaN

  at::_foreach_mul_(m, 1 - not_skipped * (1 - beta1));
  at::_foreach_add_(m, g, 1 - beta1);
  at::_foreach_mul_(v, 1 - not_skipped * (1 - beta2));
  at::_foreach_addcmul_(v, g, g, 1 - beta2);

  const at::Tensor t = step_.clamp_min(1);  // 0 before the first update that is not skipped
  const at::Tensor bias_correction1 = 1 - at::pow(beta1, t);
  const at::Tensor bias_correction2_sqrt = (1 - at::pow(beta2, t)).sqrt_();
  std::vector<at::Tensor> denominator = at::_foreach_sqrt(v);
  at::_foreach_mul_(denominator, bias_correction2_sqrt.reciprocal());
  at::_foreach_add_(denominator, options_.eps);
  std::vector<at::Tensor> update = at::_foreach_div(m, denominator);
  at::_foreach_mul_(update, not_skipped * (-lr) / bias_correction1);
  at::_foreach_add_(theta, update);
}

}  // namespace hyperion::optim
