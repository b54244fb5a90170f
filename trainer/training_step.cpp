#include "trainer/training_step.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include <fmt/format.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "base/failpoint.h"
#include "parallel/comm/trace_range.h"
#include "parallel/job/phase.h"
#include "trainer/build/model_options.h"
#include "trainer/config/validate.h"
#include "trainer/engine/expert_balance.h"
#include "trainer/optim/grad_clip.h"

namespace hyperion::trainer {
namespace {

// Null: one rank.
parallel::Communicator* ranks_of(const ModelContext& context, parallel::MeshDim dim) {
  return context.mesh.degree(dim) > 1 ? &context.groups.get(dim) : nullptr;
}

}  // namespace

TrainingStep::TrainingStep(ModelAndOptimizer& model, const config::JobConfig& config,
                           const ModelContext& context)
    : model_(model),
      groups_(context.groups),
      tensor_ranks_(ranks_of(context, parallel::MeshDim::kTp)),
      expert_ranks_(ranks_of(context, parallel::MeshDim::kEp)),
      batch_ranks_(context.mesh.degree(parallel::MeshDim::kBatch)),
      rows_(config::microbatch_rows(config, config.training.local_batch_size)),
      per_batch_(static_cast<size_t>(config.training.local_batch_size / rows_)),
      counts_tokens_(context.mesh.counts_in_loss_groups(context.rank)),
      max_norm_(config.training.max_norm),
      mover_(*model.transformer, context.device, /*labels=*/model.stage->has_head(),
             sequence_split(config, context.mesh, context.rank)),
      guard_(context.groups.all_ranks(),
             {.non_finite = config.training.on_non_finite == config::OnNonFinite::kSkip,
              .above_norm = config.training.skip_above_norm,
              .window = config.training.skip_window,
              .max_skipped = config.training.max_skipped_steps}) {}

void TrainingStep::add(data::Batch batch, StepInput& input) const {
  input.local_valid += valid_tokens(batch);
  input.own_valid += valid_tokens(batch, mover_.parts(batch.seq_len));
  input.batches.push_back(std::move(batch));
}

std::pair<const data::Batch&, int64_t> TrainingStep::rows_of(size_t microbatch,
                                                             const StepInput& input) const {
  return {input.batches[microbatch / per_batch_], static_cast<int64_t>(microbatch % per_batch_) * rows_};
}

StepLosses TrainingStep::make_gradients(int64_t step, const StepInput& input,
                                        models::LayerMetrics* reported) {
  const at::Tensor scale = inverse_of(input.global_valid);
  int64_t tokens = 0;
  for (const data::Batch& batch : input.batches) tokens += batch.rows * batch.seq_len * batch_ranks_;
  for (const models::ExpertBalancePtr& balance : model_.stage->balances())
    if (balance->losses != nullptr)
      balance->losses->start_step(tokens, static_cast<int64_t>(microbatches(input)));
  const auto microbatch = [&](size_t i) {
    const auto [batch, first_row] = rows_of(i, input);
    return mover_.move(batch, first_row, rows_);
  };
  std::vector<at::Tensor> sums =
      model_.schedule->train_step(step, microbatches(input), microbatch, scale, reported);
  if (model_.tied) model_.tied->sum_gradients(step);
  return {std::move(sums), scale};
}

at::Tensor TrainingStep::gradient_norm(int64_t step) const {
  failpoint("step.opt");
  parallel::set_phase(fmt::format("step {} gradient norm", step));
  return optim::global_grad_norm(
      optim::gradient_classes(model_.stage->gradients(), model_.fsdp->shard(), tensor_ranks_,
                              groups_.get(parallel::MeshDim::kPp), groups_.expert_groups()),
      model_.fsdp->options().state_device);
}

CheckedGradients TrainingStep::check_and_clip(const StepFlags& own, const StepInput& input,
                                              const StepLosses& losses, const at::Tensor& norm) {
  std::vector<std::vector<data::PlaceRange>> sources;  // of each microbatch
  for (size_t i = 0; i < microbatches(input); ++i) {
    const auto [batch, first_row] = rows_of(i, input);
    std::vector<data::PlaceRange>& places = sources.emplace_back();
    for (int64_t row = first_row; row < first_row + rows_; ++row)
      places.push_back(data::places_of_row(batch, static_cast<size_t>(row)));
  }
  auto [skip, agreed] = guard_.check(own, losses.sums, norm, losses.scale,
                                     [sources](size_t i) { return data::describe(sources.at(i)); });
  CheckedGradients checked{std::move(skip), std::move(agreed)};
  if (model_.optimizer->divides_gradients())
    checked.divisor = optim::clip_divisor(checked.norm, max_norm_);
  else
    optim::clip_gradients(model_.stage->gradients(), checked.norm, max_norm_);
  return checked;
}

void TrainingStep::update(int64_t step, double learning_rate, const CheckedGradients& checked,
                          models::LayerMetrics* reported) {
  {
    const parallel::TraceRange range("optimizer");
    model_.optimizer->step(learning_rate, checked.skip, checked.divisor);
    if (model_.ema) model_.ema->update(step, checked.skip);
    if (model_.transformer->args().experts.are_present())
      parallel::set_phase(fmt::format("step {} sum of expert counts", step));
    const std::vector<models::ExpertBalancePtr> balances = model_.stage->balances();
    if (reported != nullptr) record_expert_loads(balances, *model_.fsdp, expert_ranks_, *reported);
    update_expert_biases(balances, *model_.fsdp, checked.skip);
    model_.stage->weights_changed();
  }
  model_.stage->drop_gradients();
}

TrainingStep::Loss TrainingStep::reduce_losses(const StepInput& input, const StepLosses& losses) const {
  const auto& sums = losses.sums;
  const at::Tensor local =
      sums.empty() ? at::zeros({}, input.global_valid.options().dtype(at::kFloat)) : at::stack(sums).sum();
  const at::Tensor mean = local / input.global_valid.to(local.scalar_type());
  // A rank without a label, or without the head, has no mean, and no part in the maximum.
  const at::Tensor max = input.own_valid > 0 && !sums.empty() ? local / static_cast<double>(input.own_valid)
                                                              : at::full_like(local, -INFINITY);
  const parallel::ReduceChain groups = groups_.loss_groups();
  groups.all_reduce_sum(mean);
  groups.all_reduce_max(max);
  return {mean.item<double>(), max.item<double>()};
}

std::vector<double> TrainingStep::reduce_source_losses(const StepInput& input,
                                                       const models::LayerMetrics& reported,
                                                       size_t sources) const {
  if (sources == 0) return {};
  const auto count = static_cast<int64_t>(sources);
  at::Tensor sums = at::zeros({2, count}, at::TensorOptions(at::kDouble));  // losses, tokens with a label
  auto sum = sums.accessor<double, 2>();
  for (size_t i = 0; i < microbatches(input); ++i) {
    const auto [batch, first_row] = rows_of(i, input);
    const auto losses = reported.row_losses.find(i);  // none on a rank without the head
    const at::Tensor host =
        losses == reported.row_losses.end() ? at::Tensor() : losses->second.to(at::kCPU, at::kDouble);
    for (int64_t row = 0; row < rows_; ++row) {
      const int64_t source = batch.source_of_row.at(static_cast<size_t>(first_row + row));
      if (host.defined()) sum[0][source] += host[row].item<double>();
      const auto labels = std::span(batch.labels)
                              .subspan(static_cast<size_t>((first_row + row) * batch.seq_len),
                                       static_cast<size_t>(batch.seq_len));
      if (counts_tokens_)
        sum[1][source] += static_cast<double>(labels.size() - std::ranges::count(labels, data::kIgnoreLabel));
    }
  }
  const at::Device device = input.global_valid.device();
  at::Tensor total = sums.to(device, device.is_cpu() ? at::kDouble : at::kFloat);
  groups_.loss_groups().all_reduce_sum(total);
  total = total.to(at::kCPU, at::kDouble);
  std::vector<double> means;
  for (int64_t i = 0; i < count; ++i)
    means.push_back(total[0][i].item<double>() / total[1][i].item<double>());  // 0 / 0: NaN
  return means;
}

}  // namespace hyperion::trainer
