#include "trainer/optim/muon.h"

#include <algorithm>
#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_lerp.h>

#include "base/error.h"
#include "models/kernels/kernels.h"
#include "parallel/comm/trace_range.h"

namespace hyperion::optim {
double muon_scale(config::MuonScale scale, int64_t rows, int64_t columns) {
  const auto m = static_cast<double>(rows), n = static_cast<double>(columns);
  switch (scale) {
    case config::MuonScale::kMatchRmsAdamW:
      return 0.2 * std::sqrt(std::max(m, n));
    case config::MuonScale::kOriginal:
      return std::sqrt(std::max(1.0, m / n));
    case config::MuonScale::kSpectral:
      return std::sqrt(m / n);
  }
  throw_bug("a scale of Muon's that nothing computes");
}

Muon::Muon(const std::vector<parallel::ShardedParameterPtr>& parameters,
           const config::JobConfig::Optimizer& options, const OptimizerGroups& groups, uint64_t seed)
    : Optimizer(parameters),
      options_(options),
      steps_(newton_schulz_steps(options.muon.coefficients, options.muon.ns_steps)) {
  std::vector<parallel::ShardedParameterPtr> others;
  for (const parallel::ShardedParameterPtr& parameter : parameters) {
    const Parameter& described = parameter->parameter();
    const ParameterSettings settings = settings_of(options, described.fqn, described.shape.size());
    if (settings.optimizer != config::OptimizerName::kMuon) others.push_back(parameter);
  }
  if (!others.empty()) {
    adam_.emplace(others, options, seed);
    adam_->share_step_count(step_);
  }
  size_t other = 0;
  for (const parallel::ShardedParameterPtr& parameter : parameters) {
    const Parameter& described = parameter->parameter();
    const ParameterSettings settings = settings_of(options, described.fqn, described.shape.size());
    if (settings.optimizer != config::OptimizerName::kMuon) {
      adopt_states(adam_->states(other++));
      continue;
    }
    const std::vector<at::Tensor>& states =
        add_states(described.trainable ? kinds(options) : std::vector<StateKind>(), parameter->master());
    if (!described.trainable) continue;
    parameters_.push_back(parameter);
    settings_.push_back(settings);
    if (parameter->master().numel() == 0) continue;
    masters_.push_back(parameter->master());
    grads_.push_back(parameter->grad());
    momenta_.push_back(states[0]);
    held_settings_.push_back(settings);
    if (!state_dtype(options)) continue;
    rounded_.grads.push_back(parameter->grad());
    rounded_.momenta.push_back(states[0]);
    rounded_.keys.push_back(rounding_key(described.fqn, seed));
    rounded_.indices.push_back(kernels::indices_of(described.shape, parameter->box()));
  }
  plan(Domain::kDense, groups.dense);
  plan(Domain::kExpert, groups.experts);
}

void Muon::plan(Domain domain, const MatrixGroups& groups) {
  std::vector<Matrix> matrices;
  const int tensor_ranks = groups.tensor == nullptr ? 1 : groups.tensor->size();
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i]->parameter().domain == domain)
      std::ranges::move(matrices_of(parameters_[i]->parameter(), i, tensor_ranks),
                        std::back_inserter(matrices));
  if (matrices.empty()) return;
  choose_owners(matrices, groups.shard == nullptr ? 1 : groups.shard->size(), options_.muon.ns_steps);
  const at::ScalarType dtype =
      options_.muon.ns_dtype == checkpoint::Dtype::kBFloat16 ? at::kBFloat16 : at::kFloat;
  for (std::vector<Matrix>& some : deal_into_exchanges(std::move(matrices)))
    exchanges_.push_back(std::make_unique<MatrixExchange>(std::move(some), parameters_, groups, dtype));
}

std::vector<StateKind> Muon::kinds_of_trainable(const Parameter& parameter) const {
  return state_kinds(options_, parameter.fqn, parameter.shape.size());
}

std::vector<std::pair<const char*, checkpoint::Object>> Muon::settings(const Parameter& parameter) const {
  const ParameterSettings own = settings_of(options_, parameter.fqn, parameter.shape.size());
  using checkpoint::Object;
  if (own.optimizer != config::OptimizerName::kMuon) {
    if (!adam_) throw_bug("{} is AdamW's, which this rank has nothing of", parameter.fqn);
    return adam_->settings(parameter);
  }
  const bool quintic = options_.muon.coefficients == config::MuonCoefficients::kQuintic;
  const auto& [a, b, c] = steps_.front();
  return {{"weight_decay", own.weight_decay},
          {"momentum", options_.muon.momentum},
          {"nesterov", options_.muon.nesterov},
          {"ns_coefficients", quintic ? Object::tuple({a, b, c}) : Object(std::string("polar_express"))},
          {"eps", 1e-7},
          {"ns_steps", options_.muon.ns_steps},
          {"adjust_lr_fn", std::string(text_of(options_.muon.scale))}};
}

void Muon::update_momenta(const at::Tensor& skip) {
  if (state_dtype(options_)) {
    const kernels::RoundedMomentumStep step = {.momentum = options_.muon.momentum,
                                               .nesterov = options_.muon.nesterov,
                                               .updates = step_,
                                               .skip = skip.to(step_.options())};
    if (options_.implementation == config::OptimizerImplementation::kFused)
      kernels::table().rounded_momentum(step, rounded_);
    else
      kernels::plain::rounded_momentum(step, rounded_);
    return;
  }
  const at::Tensor skipped = skip.ne(0);
  for (at::Tensor& grad : grads_) grad.masked_fill_(skipped, 0);  // a product with 0 would keep NaN
  const at::Tensor share = (1 - skip) * (1 - options_.muon.momentum);
  at::_foreach_lerp_(momenta_, grads_, std::vector<at::Tensor>(grads_.size(), share));
  // The gradient's memory takes g': nothing reads the gradient after the update.
  if (options_.muon.nesterov)
    at::_foreach_lerp_(grads_, momenta_, options_.muon.momentum);
  else
    at::_foreach_copy_(grads_, momenta_);
}

void Muon::step(double lr, const at::Tensor& skip, const std::optional<at::Tensor>& divisor) {
  if (divisor) throw_bug("this optimizer divides no gradients");
  at::NoGradGuard no_grad;
  step_.add_(1 - skip);
  if (adam_) adam_->step(lr, skip);
  const parallel::TraceRange range("muon");
  const at::Tensor not_skipped = 1 - skip;
  if (!grads_.empty()) update_momenta(skip);
  for (size_t i = 0; i < masters_.size(); ++i)
    masters_[i].mul_(1 - not_skipped * (lr * held_settings_[i].lr_scale * held_settings_[i].weight_decay));
  std::vector<at::Tensor> values;
  for (const parallel::ShardedParameterPtr& parameter : parameters_)
    values.push_back(parameter->grad().flatten());
  for (size_t i = 0; i < exchanges_.size(); ++i) {
    if (i == 0) exchanges_[0]->start(values);
    if (i + 1 < exchanges_.size()) exchanges_[i + 1]->start(values);
    std::vector<at::Tensor> matrices = exchanges_[i]->gathered();
    for (at::Tensor& matrix : matrices) matrix = orthogonalize(matrix, steps_);
    exchanges_[i]->start_back(matrices);
    if (i > 0) add_results(*exchanges_[i - 1], lr, not_skipped);
  }
  if (!exchanges_.empty()) add_results(*exchanges_.back(), lr, not_skipped);
  for (const parallel::ShardedParameterPtr& parameter : parameters_)
    if (parameter->has_separate_compute_shard())
      parameter->compute_shard().copy_(parameter->master(), /*non_blocking=*/true);
}

void Muon::add_results(MatrixExchange& exchange, double lr, const at::Tensor& not_skipped) {
  for (const MatrixExchange::Piece& piece : exchange.returned()) {
    const Matrix& matrix = exchange.matrices()[piece.matrix];
    const double rate = lr * settings_[matrix.parameter].lr_scale *
                        muon_scale(options_.muon.scale, matrix.rows, matrix.columns);
    parameters_[matrix.parameter]
        ->master()
        .view(-1)
        .narrow(0, piece.range.begin, piece.range.count)
        .add_(piece.values * (not_skipped * -rate));
  }
}

}  // namespace hyperion::optim
