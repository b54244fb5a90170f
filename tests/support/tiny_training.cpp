#include "tests/support/tiny_training.h"

#include <algorithm>

#include <fmt/format.h>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "base/device/device_library.h"
#include "base/philox.h"
#include "parallel/fsdp/replica_audit.h"
#include "trainer/checkpointing/job_state.h"
#include "trainer/engine/expert_balance.h"
#include "trainer/engine/layer_metrics.h"
#include "trainer/preflight.h"

namespace hyperion {
namespace {

constexpr double kLearningRate = 1e-2;
constexpr int64_t kStateParameters = 1000;  // the index of the first state's first parameter

config::JobConfig::Model tiny_model(const TinyJob& job) {
  const std::string_view name = job.model;
  models::ModelOverrides dims{
      .dim = 18,
      .n_layers = job.layers,
      .n_heads = job.heads,
      .n_kv_heads = job.kv_heads,
      .head_dim = 6,
      .vocab_size = TinyTraining::kVocab,
      .hidden_dim = 25,
      .sinks = job.sinks ? std::optional(true) : std::nullopt,
      .sliding_window_size = job.window > 0 ? std::optional(job.window) : std::nullopt,
      .full_attention_every = job.window > 0 ? std::optional<int64_t>(2) : std::nullopt};
  const bool has_experts =
      name == "qwen3_moe" || name == "llama4" || name == "deepseek_v3" || name == "gpt_oss";
  if (has_experts) {  // in every block, in every second one, or from the second one on
    dims.num_experts = job.experts;
    dims.moe_hidden_dim = job.expert_hidden;
    dims.top_k = name == "llama4" ? 1 : 2;
    dims.router_z_loss_coeff = job.router_losses.z;
    dims.sequence_aux_loss_coeff = job.router_losses.sequence;
    dims.global_aux_loss_coeff = job.router_losses.global;
  }
  if (name == "deepseek_v3") {
    dims.n_kv_heads = dims.head_dim = std::nullopt;
    dims.kv_lora_rank = 7;
    dims.qk_nope_head_dim = 4;
    dims.qk_rope_head_dim = 2;
    dims.v_head_dim = 5;
    dims.score_before_experts = job.score_before_experts;
  }
  if (!job.float8.empty() || job.fits_float8_experts) {
    dims.dim = 32;
    dims.n_heads = 2;
    dims.n_kv_heads = job.fits_float8_experts ? 2 : job.kv_heads;
    dims.head_dim = 16;
    dims.hidden_dim = 48;
  }
  if (job.qkv_bias) dims.qkv_bias = true;
  if (job.output_bias) dims.output_bias = true;
  config::JobConfig::Model model;
  model.name = name == "qwen3_moe" ? "qwen3" : name;
  model.flavor = name == "qwen3_moe" ? "debugmodel_moe" : "debugmodel";
  model.args = dims;
  return model;
}

void quantize(const TinyJob& job, config::JobConfig& config) {
  if (job.float8_experts) {
    const bool blocks = *job.float8_experts == float8::GroupedRecipe::kMx;
    auto& experts = config.quantize.grouped_mm;
    config.model.converters = {blocks ? config::Converter::kGroupedMx : config::Converter::kGroupedFloat8};
    experts.float8.fqns = experts.mx.fqns = {"experts"};
    experts.float8.emulate = experts.mx.emulate = true;
    return;
  }
  if (job.float8.empty()) return;
  config.model.converters = {config::Converter::kFloat8};
  auto& float8 = config.quantize.linear.float8;
  float8.recipe_name = choice_of<float8::Recipe>(job.float8).value();
  float8.emulate = job.float8_emulate;
  float8.enable_fsdp_float8_all_gather = job.float8_gather;
  float8.precompute_float8_dynamic_scale_for_fsdp = job.float8_precompute;
}

config::RecomputeMode recompute_mode(models::ActivationCheckpoint checkpoint) {
  using enum models::ActivationCheckpoint;
  return checkpoint == kNone          ? config::RecomputeMode::kNone
         : checkpoint == kFull        ? config::RecomputeMode::kFull
         : checkpoint == kElementwise ? config::RecomputeMode::kElementwise
                                      : config::RecomputeMode::kSelective;
}

// `mesh`: of job.mesh.
config::JobConfig tiny_config(const TinyJob& job, const parallel::Mesh& mesh) {
  using parallel::MeshDim;
  config::JobConfig config;
  config.model = tiny_model(job);
  quantize(job, config);
  config.activation_checkpoint.mode = recompute_mode(job.checkpoint);
  config.activation_checkpoint.selective_ac_option = "op";
  config.debug.moe_force_load_balance = job.balanced;
  if (job.muon) config.optimizer.name = config::OptimizerName::kMuon;
  config.optimizer.muon.ns_dtype = job.ns_dtype;
  if (job.bf16_states) config.optimizer.state_dtype = checkpoint::Dtype::kBFloat16;

  // A pipeline's microbatches are one local batch, others one each.
  auto& training = config.training;
  const bool pipelined = job.mesh.pp > 1;
  const int64_t rows = TinyTraining::kGlobalBatch / (mesh.degree(MeshDim::kBatch) * job.accumulation);
  training.local_batch_size = pipelined ? rows * job.accumulation : rows;
  training.global_batch_size = TinyTraining::kGlobalBatch;
  training.seq_len = TinyTraining::kSeqLen;
  training.mixed_precision_param = checkpointing::dtype_of(job.compute);
  training.enable_cpu_offload = job.offload;
  training.document_mask = job.documents;
  training.z_loss = job.z_loss;

  auto& parallelism = config.parallelism;
  parallelism.data_parallel_replicate_degree = mesh.degree(MeshDim::kDpReplicate);
  parallelism.data_parallel_shard_degree = mesh.degree(MeshDim::kDpShard);
  parallelism.fsdp_reshard_after_forward =
      job.reshard_after_forward ? config::ReshardAfterForward::kAlways : config::ReshardAfterForward::kNever;
  parallelism.fsdp_reduce_gradients =
      job.reduce_once ? config::ReduceGradients::kOncePerStep : config::ReduceGradients::kEveryMicrobatch;
  parallelism.tensor_parallel_degree = job.mesh.tp;
  parallelism.disable_loss_parallel = job.disable_loss_parallel;
  parallelism.pipeline_parallel_degree = job.mesh.pp;
  parallelism.pipeline_parallel_schedule = text_of(job.schedule);
  parallelism.pipeline_parallel_schedule_csv = job.schedule_csv;
  parallelism.pipeline_parallel_microbatch_size = rows;
  parallelism.context_parallel_degree = job.mesh.cp;
  if (!job.head_tail) parallelism.context_parallel_load_balancer = std::nullopt;
  if (job.ring) parallelism.context_parallel_rotate_method = "alltoall";
  parallelism.expert_parallel_degree = job.mesh.ep;
  parallelism.expert_tensor_parallel_degree = job.mesh.etp;
  parallelism.expert_parallel_once_per_node = job.mesh.ep_nodes > 1;
  parallelism.expert_parallel_slices = job.expert_slices;
  return config;
}

// Of one sequence: documents of one token, across the borders of ranks, and of a complete sequence.
void append_positions(int64_t sequence, std::vector<int32_t>& positions) {
  positions.push_back(0);
  for (int64_t i = 1; i < TinyTraining::kSeqLen; ++i) {
    const bool starts = sequence % 4 != 0 && philox4x32(7, sequence * 100 + i)[0] % 3 == 0;
    positions.push_back(starts ? 0 : positions.back() + 1);
  }
}

// Each next token is a fixed function of the last, or now and then not.
void append_sequence(int64_t sequence, data::Batch& batch) {
  int64_t token = sequence % TinyTraining::kVocab;
  for (int64_t i = 0; i < TinyTraining::kSeqLen; ++i) {
    batch.tokens.push_back(token);
    const uint32_t dice = philox4x32(99, static_cast<uint64_t>(sequence * 100 + i))[0];
    token = dice % 8 == 0 ? dice % TinyTraining::kVocab : (token * 5 + 3) % TinyTraining::kVocab;
    batch.labels.push_back(token);
  }
  batch.documents.emplace_back();
}

parallel::CommOptions tiny_comm(const TinyJob& job, const std::optional<trainer::Pipeline>& pipeline,
                                const models::ModelArgs& args) {
  using enum parallel::CommBackend;
  return {.backend = job.fake               ? kFake
                     : job.device.is_cuda() ? kNccl
                                            : kGloo,
          .shared_memory = job.shared_memory,
          .device_index = std::max<int>(0, job.device.index()),
          .mailbox_pieces = job.mailbox_pieces,
          .tied = trainer::ranks_of_tied_table(pipeline, args)};
}

trainer::Float8Device float8_device(at::Device device) {
  if (device.is_cpu()) return {};
  const int index = device.index();
  return {false, device_library().compute_capability(index), device_library().device_name(index)};
}

}  // namespace

TinyTraining::TinyTraining(const TinyJob& job, const parallel::Environment& environment)
    : job_(job),
      mesh_(job.mesh, environment.world_size),
      rank_(environment.rank),
      config_(tiny_config(job, mesh_)),
      pipeline_(trainer::configured_pipeline(config_, trainer::job_model(config_))),
      groups_(std::make_unique<parallel::ProcessGroups>(
          mesh_, environment, tiny_comm(job, pipeline_, trainer::job_model(config_)))),
      tensor_(job.mesh.tp > 1 ? &groups_->get(parallel::MeshDim::kTp) : nullptr) {
  groups_->set_observer([this](const parallel::CommOperation& operation) {
    const std::string group(operation.group), name(operation.name);
    ledger_.add(group, name, operation.sent_bytes);
    sent_dtypes_[group + " " + name].insert(operation.dtype);
  });
  if (job.omit_replicated_sum)
    tensor_without_sums_ =
        parallel::make_fake_communicator("none/0", tensor_->rank(), tensor_->global_ranks());
  const trainer::ModelContext context{.mesh = mesh_,
                                      .rank = rank_,
                                      .groups = *groups_,
                                      .device = job.device,
                                      .float8 = float8_device(job.device),
                                      .pipeline = pipeline_ ? &*pipeline_ : nullptr,
                                      .variation = {.pack_weights = job.pack_weights,
                                                    .shard_alignment = job.shard_alignment,
                                                    .replicated_sum = tensor_without_sums_.get(),
                                                    .frozen_from = job.frozen_from}};
  model_ = trainer::make_model_and_optimizer(trainer::job_model(config_), config_, context);
  step_.emplace(model_, config_, context);
  trainer::initialise_weights(model_, /*seed=*/1);
}

int64_t TinyTraining::gathered_bytes(const parallel::ShardGroup& unit) {
  int64_t bytes = 0;
  for (const parallel::ShardedParameterPtr& parameter : unit.parameters())
    bytes += static_cast<int64_t>(parameter->all_gather_output().storage().nbytes());
  return bytes;
}

// Microbatch m of rank r has the same sequences with and without a pipeline.
data::Batch TinyTraining::batch(int64_t step, int64_t number) const {
  const int64_t ranks = mesh_.degree(parallel::MeshDim::kBatch),
                rank = mesh_.coordinate(rank_, parallel::MeshDim::kBatch),
                rows = kGlobalBatch / (ranks * job_.accumulation);
  data::Batch batch;
  batch.rows = config_.training.local_batch_size;
  batch.seq_len = kSeqLen;
  for (int64_t row = number * batch.rows; row < (number + 1) * batch.rows; ++row) {
    const int64_t microbatch = row / rows;
    const int64_t sequence = step * kGlobalBatch + (microbatch * ranks + rank) * rows + row % rows;
    append_sequence(sequence, batch);
    if (job_.documents) append_positions(sequence, batch.positions);
  }
  return batch;
}

trainer::StepInput TinyTraining::input(int64_t step) const {
  trainer::StepInput input;
  const int64_t batches = config_.training.global_batch_size /
                          (config_.training.local_batch_size * mesh_.degree(parallel::MeshDim::kBatch));
  for (int64_t i = 0; i < batches; ++i) step_->add(batch(step, i), input);
  input.global_valid = at::full({}, kGlobalBatch * kSeqLen, at::TensorOptions(at::kLong).device(job_.device));
  return input;
}

template <typename Visit>
void TinyTraining::for_each_trained_run(const Visit& visit) {
  const std::vector<ParameterPtr> all = model().parameters();
  for (const parallel::ShardedParameterPtr& parameter : model_.parameters) {
    if (!parameter->parameter().trainable) continue;
    const auto named = [&](const ParameterPtr& one) { return one.get() == &parameter->parameter(); };
    const int64_t index = std::ranges::find_if(all, named) - all.begin();
    for_each_run(parameter->parameter().shape, parameter->box(),
                 [&](const Run& run) { visit(*parameter, index, run); });
  }
}

std::vector<TinyTraining::GradientElement> TinyTraining::first_gradients() {
  step_->make_gradients(0, input(0), nullptr);
  std::vector<GradientElement> elements;
  for_each_trained_run([&](const parallel::ShardedParameter& parameter, int64_t index, const Run& run) {
    const at::Tensor grad =
        parameter.grad().to(at::kCPU, at::kFloat).contiguous().flatten().narrow(0, run.in_box, run.count);
    for (int64_t i = 0; i < run.count; ++i)
      elements.push_back({index, run.in_tensor + i, grad.const_data_ptr<float>()[i]});
  });
  return elements;
}

std::vector<TinyTraining::GradientElement> TinyTraining::state_after_updates(int updates) {
  for (int update = 0; update < updates; ++update) {
    for_each_trained_run([&](const parallel::ShardedParameter& parameter, int64_t index, const Run& run) {
      at::Tensor grad = parameter.grad().view(-1).narrow(0, run.in_box, run.count);
      for (int64_t i = 0; i < run.count; ++i) {
        const PhiloxBlock random =
            philox4x32(static_cast<uint64_t>(100 * index + update), static_cast<uint64_t>(run.in_tensor + i));
        grad[i].fill_(uniform_open(random[0], random[1]) - 0.5);
      }
    });
    model_.optimizer->step(kLearningRate, at::zeros({}));
  }
  std::vector<GradientElement> elements;
  for_each_trained_run([&](const parallel::ShardedParameter& parameter, int64_t index, const Run& run) {
    const at::Tensor weight = parameter.master().flatten().narrow(0, run.in_box, run.count);
    for (int64_t i = 0; i < run.count; ++i)
      elements.push_back({index, run.in_tensor + i, weight.const_data_ptr<float>()[i]});
    const auto is_this = [&](const auto& one) { return one.get() == &parameter; };
    const auto at = std::ranges::find_if(model_.parameters, is_this) - model_.parameters.begin();
    int64_t state = kStateParameters;
    for (const at::Tensor& values : optimizer().states(static_cast<size_t>(at))) {
      const at::Tensor numbers = values.to(at::kFloat).flatten().narrow(0, run.in_box, run.count);
      for (int64_t i = 0; i < run.count; ++i)
        elements.push_back({state + index, run.in_tensor + i, numbers.const_data_ptr<float>()[i]});
      state += kStateParameters;
    }
  });
  return elements;
}

std::vector<double> TinyTraining::first_layer_metrics() {
  models::LayerMetrics recorded{.activations = true};
  step_->make_gradients(0, input(0), &recorded);
  std::vector<double> values;
  for (const auto& [tag, value] : trainer::reduce_layer_metrics(
           recorded, groups_->all_ranks(), groups_->get(parallel::MeshDim::kPp), job_.device))
    values.push_back(value);
  return values;
}

std::map<std::string, double> TinyTraining::reported_metrics(int64_t step) {
  models::LayerMetrics recorded;
  step_->make_gradients(step, input(step), &recorded);
  std::map<std::string, double> values;
  for (const auto& [tag, value] : trainer::reduce_layer_metrics(
           recorded, groups_->all_ranks(), groups_->get(parallel::MeshDim::kPp), job_.device))
    values[tag] = value;
  stage().drop_gradients();
  return values;
}

std::map<std::string, double> TinyTraining::expert_loads() {
  models::LayerMetrics recorded;
  parallel::Communicator* expert_ranks =
      mesh_.degree(parallel::MeshDim::kEp) > 1 ? &groups_->get(parallel::MeshDim::kEp) : nullptr;
  trainer::record_expert_loads(stage().balances(), *model_.fsdp, expert_ranks, recorded);
  std::map<std::string, double> loads;
  for (const auto& [tag, value] : trainer::keep_worst_block(trainer::reduce_layer_metrics(
           recorded, groups_->all_ranks(), groups_->get(parallel::MeshDim::kPp), job_.device)))
    loads[tag] = value;
  return loads;
}

void TinyTraining::audit_replicas() {
  parallel::audit_replicas(trainer::replicated_state(model_.parameters, *model_.optimizer, stage().balances(),
                                                     model_.fsdp->shard(), model_.fsdp->replicate(), tensor_,
                                                     model_.tied.get()));
}

TinyStep TinyTraining::step(int64_t step) {
  const trainer::StepInput input = this->input(step);
  const trainer::StepLosses losses = step_->make_gradients(step, input, nullptr);
  const trainer::CheckedGradients checked =
      step_->check_and_clip({.step = step}, input, losses, step_->gradient_norm(step));
  step_->update(step, kLearningRate, checked, nullptr);
  step_->guard().raise(/*wait=*/true);
  return {step_->reduce_losses(input, losses).mean, checked.norm.item<double>()};
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
