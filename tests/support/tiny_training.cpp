#include "tests/support/tiny_training.h"

#include <algorithm>

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "base/device/device_library.h"
#include "base/philox.h"
#include "models/init.h"
#include "parallel/fsdp/replica_audit.h"
#include "parallel/pipeline/csv.h"
#include "trainer/build/model_and_optimizer.h"
#include "trainer/engine/expert_balance.h"
#include "trainer/engine/layer_metrics.h"
#include "trainer/optim/grad_clip.h"

namespace hyperion {
namespace {

models::ModelArgs tiny_args(const TinyJob& job) {
  if (!job.float8.empty())
    return models::model_args(job.model, "debugmodel",
                              {.dim = 32,
                               .n_layers = job.layers,
                               .n_heads = 2,
                               .n_kv_heads = job.kv_heads,
                               .head_dim = 16,
                               .vocab_size = TinyTraining::kVocab,
                               .hidden_dim = 48});
  if (job.fits_float8_experts)
    return models::model_args("qwen3", "debugmodel_moe",
                              {.dim = 32,
                               .n_layers = job.layers,
                               .n_heads = 2,
                               .n_kv_heads = 2,
                               .head_dim = 16,
                               .vocab_size = TinyTraining::kVocab,
                               .num_experts = job.experts,
                               .moe_hidden_dim = job.expert_hidden,
                               .top_k = 2});
  const std::string_view model = job.model;
  if (model == "deepseek_v3") {  // with experts from the second block on
    models::ModelArgs args = models::model_args(job.model, "debugmodel",
                                                {.dim = 18,
                                                 .n_layers = job.layers,
                                                 .n_heads = job.heads,
                                                 .vocab_size = TinyTraining::kVocab,
                                                 .hidden_dim = 25,
                                                 .kv_lora_rank = 7,
                                                 .qk_nope_head_dim = 4,
                                                 .qk_rope_head_dim = 2,
                                                 .v_head_dim = 5,
                                                 .num_experts = job.experts,
                                                 .moe_hidden_dim = job.expert_hidden,
                                                 .top_k = 2,
                                                 .score_before_experts = job.score_before_experts});
    args.force_load_balance = job.balanced;
    return args;
  }
  if (model == "qwen3_moe" || model == "llama4")  // in every block, or in every second one
    return models::model_args(model == "llama4" ? "llama4" : "qwen3",
                              model == "llama4" ? "debugmodel" : "debugmodel_moe",
                              {.dim = 18,
                               .n_layers = job.layers,
                               .n_heads = job.heads,
                               .n_kv_heads = job.kv_heads,
                               .head_dim = 6,
                               .vocab_size = TinyTraining::kVocab,
                               .hidden_dim = 25,
                               .num_experts = job.experts,
                               .moe_hidden_dim = job.expert_hidden,
                               .top_k = model == "llama4" ? 1 : 2});
  return models::model_args(job.model, "debugmodel",
                            {.dim = 18,
                             .n_layers = job.layers,
                             .n_heads = job.heads,
                             .n_kv_heads = job.kv_heads,
                             .head_dim = 6,
                             .vocab_size = TinyTraining::kVocab,
                             .hidden_dim = 25});
}

// Of sequences `first` and those after it: documents of one token, across the borders of ranks, and of a
// complete sequence.
at::Tensor document_positions(int64_t first, int64_t rows) {
  const at::Tensor positions = at::zeros({rows, TinyTraining::kSeqLen}, at::TensorOptions(at::kInt));
  auto* position = positions.data_ptr<int32_t>();
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 1; i < TinyTraining::kSeqLen; ++i) {
      const bool starts = (first + row) % 4 != 0 && philox4x32(7, (first + row) * 100 + i)[0] % 3 == 0;
      int32_t* of_row = position + row * TinyTraining::kSeqLen;
      of_row[i] = starts ? 0 : of_row[i - 1] + 1;
    }
  return positions;
}

trainer::Float8Setup convert(models::Transformer& model, const TinyJob& job) {
  config::JobConfig config;
  if (job.float8_experts) {
    const bool blocks = *job.float8_experts == float8::GroupedRecipe::kMx;
    auto& experts = config.quantize.grouped_mm;
    config.model.converters = {blocks ? config::Converter::kGroupedMx : config::Converter::kGroupedFloat8};
    experts.float8.fqns = experts.mx.fqns = {"experts"};
    experts.float8.emulate = experts.mx.emulate = true;
    return trainer::convert_to_float8(model, config, {});
  }
  if (job.float8.empty()) return {};
  config.model.converters = {config::Converter::kFloat8};
  auto& float8 = config.quantize.linear.float8;
  float8.recipe_name = choice_of<float8::Recipe>(job.float8).value();
  float8.emulate = job.float8_emulate;
  float8.enable_fsdp_float8_all_gather = job.float8_gather;
  float8.precompute_float8_dynamic_scale_for_fsdp = job.float8_precompute;
  if (job.device.is_cpu()) return trainer::convert_to_float8(model, config, {});
  const int index = job.device.index();
  return trainer::convert_to_float8(
      model, config,
      {false, device_library().compute_capability(index), device_library().device_name(index)});
}

std::optional<trainer::Pipeline> tiny_pipeline(const TinyJob& job) {
  if (job.mesh.pp == 1) return std::nullopt;
  trainer::PipelineSettings settings{.kind = job.schedule,
                                     .ranks = job.mesh.pp,
                                     .microbatches = static_cast<size_t>(job.accumulation),
                                     .recomputes = job.checkpoint != models::ActivationCheckpoint::kNone,
                                     .gathers_stages = !job.reshard_after_forward,
                                     .reduces_once = job.reduce_once};
  int stages = job.mesh.pp * static_cast<int>(job.stages_per_rank);
  if (!job.listed.empty()) {
    settings.listed = parallel::parse_csv_schedule(job.listed, "order.csv", job.mesh.pp,
                                                   static_cast<int>(job.accumulation));
    stages = settings.listed->stages();
  }
  settings.stages = parallel::split_units(stages, static_cast<int>(tiny_args(job).n_layers), {});
  return trainer::make_pipeline(settings);
}

}  // namespace

TinyTraining::TinyTraining(const TinyJob& job, const parallel::Environment& environment)
    : job_(job),
      pipeline_(tiny_pipeline(job)),
      mesh_(job.mesh, environment.world_size),
      rank_(environment.rank),
      groups_(std::make_unique<parallel::ProcessGroups>(
          mesh_, environment,
          parallel::CommOptions{.backend = job.fake               ? parallel::CommBackend::kFake
                                           : job.device.is_cuda() ? parallel::CommBackend::kNccl
                                                                  : parallel::CommBackend::kGloo,
                                .shared_memory = job.shared_memory,
                                .device_index = std::max<int>(0, job.device.index()),
                                .mailbox_pieces = job.mailbox_pieces,
                                .tied = trainer::ranks_of_tied_table(pipeline_, tiny_args(job))})),
      tensor_(job.mesh.tp > 1 ? &groups_->get(parallel::MeshDim::kTp) : nullptr),
      model_(tiny_args(job), /*loss_chunk_bytes=*/0,
             {.tensor = tensor_,
              .loss_parallel = !job.disable_loss_parallel,
              .context = &groups_->get(parallel::MeshDim::kCp),
              .ring = job.ring,
              .expert = job.mesh.ep > 1 ? &groups_->get(parallel::MeshDim::kEp) : nullptr,
              .divides_experts = job.mesh.etp > 1}),
      float8_(convert(model_, job)) {
  const parallel::ShardingOptions sharding{.device = job.device,
                                           .state_device = job.offload ? at::Device(at::kCPU) : job.device,
                                           .compute_dtype = job.compute,
                                           .shard_alignment = job.shard_alignment,
                                           .pack_weights = job.pack_weights,
                                           .codec = float8_.codec};
  groups_->set_observer([this](const parallel::CommOperation& operation) {
    const std::string group(operation.group), name(operation.name);
    ledger_.add(group, name, operation.sent_bytes);
    sent_dtypes_[group + " " + name].insert(operation.dtype);
  });
  parallel::Communicator* summing = tensor_;
  if (job.omit_replicated_sum) {
    tensor_without_sums_ =
        parallel::make_fake_communicator("none/0", tensor_->rank(), tensor_->global_ranks());
    summing = tensor_without_sums_.get();
  }
  fsdp_ = std::make_unique<parallel::FsdpContext>(mesh_, rank_, groups_->get(parallel::MeshDim::kFsdp),
                                                  groups_->get(parallel::MeshDim::kDpReplicate), sharding,
                                                  summing);
  if (job.mesh.ep > 1)
    experts_ = std::make_unique<parallel::FsdpContext>(*fsdp_, groups_->get(parallel::MeshDim::kEfsdp));
  if (job.frozen_from >= 0) {
    const std::vector<ParameterPtr> all = model_.parameters();
    for (auto i = static_cast<size_t>(job.frozen_from); i < all.size(); i += 2) all[i]->trainable = false;
  }
  model_.allocate_balances(job.device);
  models::ActivationCheckpointing checkpointing;
  checkpointing.blocks.assign(model_.blocks().size(), job.checkpoint);
  if (pipeline_) {
    parallel::Communicator& ranks = groups_->get(parallel::MeshDim::kPp);
    stage_ = std::make_unique<trainer::Stage>(model_, trainer::units_of_rank(*pipeline_, ranks.rank()),
                                              *fsdp_, checkpointing, experts_.get());
    schedule_ = std::make_unique<trainer::ScheduleRunner>(
        *stage_, *pipeline_, trainer::StageGroups{ranks, groups_->pp_down()}, job.device);
    if (parallel::Communicator* tied = groups_->tied_group())
      tied_ = std::make_unique<trainer::TiedTable>(*tied, *stage_);
  } else {
    stage_ = std::make_unique<trainer::Stage>(model_, *fsdp_, checkpointing, experts_.get());
    schedule_ =
        std::make_unique<trainer::ScheduleRunner>(*stage_, job.reshard_after_forward, job.reduce_once);
  }
  for (const parallel::ShardedParameterPtr& parameter : stage_->parameters()) {
    at::Tensor master = parameter->master();
    models::initialize(parameter->parameter(), 1, parameter->box(), master);
    parameter->compute_shard().copy_(master);
  }
  stage_->weights_changed();
  optimizer_ = optim::make_optimizer(stage_->parameters(), config::JobConfig::Optimizer{});
}

int64_t TinyTraining::gathered_bytes(const parallel::ShardGroup& unit) {
  int64_t bytes = 0;
  for (const parallel::ShardedParameterPtr& parameter : unit.parameters())
    bytes += static_cast<int64_t>(parameter->all_gather_output().storage().nbytes());
  return bytes;
}

models::Microbatch TinyTraining::microbatch(int64_t step, int64_t index) const {
  const int64_t ranks = mesh_.degree(parallel::MeshDim::kBatch),
                rows = kGlobalBatch / (ranks * job_.accumulation);
  const int64_t first =
      step * kGlobalBatch + index * ranks * rows + mesh_.coordinate(rank_, parallel::MeshDim::kBatch) * rows;
  const at::Tensor ids = at::zeros({rows, kSeqLen + 1}, at::TensorOptions(at::kLong));
  for (int64_t row = 0; row < rows; ++row) {
    int64_t token =
        (first + row) % kVocab;  // each next token is a fixed function of the last, or now and then not
    for (int64_t i = 0; i <= kSeqLen; ++i) {
      ids[row][i] = token;
      const uint32_t dice = philox4x32(99, static_cast<uint64_t>((first + row) * 100 + i))[0];
      token = dice % 8 == 0 ? dice % kVocab : (token * 5 + 3) % kVocab;
    }
  }
  const models::SequenceSplit split{mesh_.degree(parallel::MeshDim::kCp),
                                    mesh_.coordinate(rank_, parallel::MeshDim::kCp), job_.head_tail};
  const std::vector<models::SequenceRange> parts = models::sequence_parts(kSeqLen, split);
  const at::Tensor positions = job_.documents ? document_positions(first, rows) : at::Tensor();
  const auto own = [&](const at::Tensor& tokens) {
    return models::columns_of_parts(tokens, parts).contiguous().to(job_.device);
  };
  models::Microbatch made{own(ids.narrow(1, 0, kSeqLen)), own(ids.narrow(1, 1, kSeqLen)),
                          model_.context(kSeqLen, job_.device)};
  if (split.ranks > 1)
    made.context = models::context_of_parts(made.context, parts, positions);
  else if (job_.documents)
    made.context = models::inside_documents(made.context, positions.to(job_.device),
                                            kernels::documents_from(positions, job_.device));
  return made;
}

// The summed loss of this rank's sequences; the gradients are complete afterwards.
at::Tensor TinyTraining::forward_backward(int64_t step, models::LayerMetrics* metrics) {
  const at::Tensor scale =
      at::full({}, 1.0 / (kGlobalBatch * kSeqLen), at::TensorOptions(at::kFloat).device(job_.device));
  const at::Tensor loss = at::zeros({}, at::TensorOptions(at::kFloat).device(job_.device));
  for (const at::Tensor& sum : schedule_->train_step(
           step, static_cast<size_t>(job_.accumulation),
           [&](size_t i) { return microbatch(step, static_cast<int64_t>(i)); }, scale, metrics))
    loss.add_(sum);
  if (tied_) tied_->sum_gradients(step);
  return loss;
}

std::vector<TinyTraining::GradientElement> TinyTraining::first_gradients() {
  forward_backward(0);
  std::vector<GradientElement> elements;
  const std::vector<ParameterPtr> all = model_.parameters();
  for (const parallel::ShardedParameterPtr& parameter : stage_->parameters()) {
    if (!parameter->parameter().trainable) continue;
    const auto named = [&](const ParameterPtr& one) { return one.get() == &parameter->parameter(); };
    const int64_t index = std::ranges::find_if(all, named) - all.begin();
    const at::Tensor grad = parameter->grad().to(at::kCPU, at::kFloat).contiguous();
    for_each_run(parameter->parameter().shape, parameter->box(), [&](const Run& run) {
      for (int64_t i = 0; i < run.count; ++i)
        elements.push_back({index, run.in_tensor + i, grad.data_ptr<float>()[run.in_box + i]});
    });
  }
  return elements;
}

std::vector<double> TinyTraining::first_layer_metrics() {
  models::LayerMetrics recorded{.activations = true};
  forward_backward(0, &recorded);
  std::vector<double> values;
  for (const auto& [tag, value] : trainer::reduce_layer_metrics(
           recorded, groups_->all_ranks(), groups_->get(parallel::MeshDim::kPp), job_.device))
    values.push_back(value);
  return values;
}

std::map<std::string, double> TinyTraining::expert_loads() {
  models::LayerMetrics recorded;
  parallel::Communicator* expert_ranks =
      mesh_.degree(parallel::MeshDim::kEp) > 1 ? &groups_->get(parallel::MeshDim::kEp) : nullptr;
  trainer::record_expert_loads(stage_->balances(), *fsdp_, expert_ranks, recorded);
  std::map<std::string, double> loads;
  for (const auto& [tag, value] : trainer::keep_worst_block(trainer::reduce_layer_metrics(
           recorded, groups_->all_ranks(), groups_->get(parallel::MeshDim::kPp), job_.device)))
    loads[tag] = value;
  return loads;
}

void TinyTraining::audit_replicas() {
  parallel::audit_replicas(trainer::replicated_state(
      stage_->parameters(), *optimizer_, stage_->balances(), groups_->get(parallel::MeshDim::kFsdp),
      groups_->get(parallel::MeshDim::kDpReplicate), tensor_, tied_.get()));
}

TinyStep TinyTraining::step(int64_t step) {
  const at::Tensor loss = forward_backward(step);
  const parallel::LocalGradients& gradients = stage_->gradients();
  const at::Tensor norm = optim::global_grad_norm(
      optim::gradient_classes(gradients, groups_->get(parallel::MeshDim::kFsdp), tensor_,
                              groups_->get(parallel::MeshDim::kPp), groups_->expert_groups()),
      fsdp_->options().state_device);
  optim::clip_gradients(gradients, norm, 1.0);
  const at::Tensor skip = at::zeros({}, norm.options().dtype(at::kFloat));
  optimizer_->step(1e-2, skip);
  trainer::update_expert_biases(stage_->balances(), *fsdp_, skip);
  stage_->weights_changed();
  stage_->drop_gradients();
  groups_->loss_groups().all_reduce_sum(loss);
  return {loss.item<double>() / (kGlobalBatch * kSeqLen), norm.item<double>()};
}

std::vector<TinyStep> train_tiny(const TinyJob& job, const parallel::Environment& environment,
                                 int64_t steps) {
  TinyTraining training(job, environment);
  std::vector<TinyStep> trained;
  for (int64_t step = 0; step < steps; ++step) trained.push_back(training.step(step));
  return trained;
}

double largest_difference(const std::vector<TinyStep>& a, const std::vector<TinyStep>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(a[i].loss - b.at(i).loss) / std::abs(b[i].loss));
    largest = std::max(largest, std::abs(a[i].grad_norm - b[i].grad_norm) / std::abs(b[i].grad_norm));
  }
  return largest;
}

}  // namespace hyperion
