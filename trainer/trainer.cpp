#include "trainer/trainer.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <numeric>
#include <random>

#include "base/files.h"
#include "base/log.h"
#include "models/init.h"
#include "parallel/agreement.h"
#include "parallel/device_library.h"
#include "parallel/phase.h"
#include "trainer/config/print.h"
#include "trainer/config/validate.h"
#include "trainer/metrics/flops.h"
#include "trainer/metrics/gemm_peak.h"
#include "trainer/metrics/run_folder.h"
#include "trainer/metrics/step_line.h"
#include "trainer/optim/grad_clip.h"
#include "trainer/options.h"
#include "trainer/signals.h"
#include "trainer/version.h"

namespace hyperion {
namespace {

// Checks the whole configuration, with the tokenizer it names. Nothing touches a device before this has
// passed.
DataSetup checked_data(const ResolvedConfig& resolved, const ModelArgs& model) {
  RunFacts facts;
  facts.world_size = job_environment(resolved.config).world_size;
  facts.model = model_facts(model);
  validate(resolved, facts, install_root());
  DataSetup data = load_tokenizer(resolved.config);
  facts.tokenizer_vocab_size = data.tokenizer->vocab_size();
  validate(resolved, facts);
  return data;
}

// debug.seed, or a random one of rank 0's.
uint64_t common_seed(const JobConfig& config, const Runtime& runtime) {
  if (config.debug.seed) return static_cast<uint64_t>(*config.debug.seed);
  std::random_device device;
  const uint64_t own = (uint64_t{device()} << 32) | device();
  const uint64_t seed = std::stoull(runtime.groups->host().all_gather_text(std::to_string(own)).front());
  log_info("debug.seed is not set: using {}", seed);
  return seed;
}

LrSchedule schedule_of(const JobConfig& config) {
  const auto& options = config.lr_scheduler;
  return {options.total_steps.value_or(config.training.steps), options.warmup_steps, options.decay_ratio,
          decay_type(options.decay_type), options.min_lr_factor};
}

std::vector<at::Tensor> all_grads(const UnitWalk& walk) {
  std::vector<at::Tensor> grads;
  for (const auto& group : walk.groups())
    if (group->owned_grads().numel() > 0) grads.push_back(group->owned_grads());
  return grads;
}

LoaderPlace place_of(const Runtime& runtime, uint64_t seed, const ModelArgs& model) {
  return {runtime.mesh->coordinate(runtime.rank(), MeshDim::kBatch), runtime.mesh->degree(MeshDim::kBatch),
          seed, model.vocab_size};
}

}  // namespace

Trainer::Trainer(const ResolvedConfig& resolved, const std::vector<std::string>& command)
    : config_(resolved.config),
      model_args_(model_args(config_.model)),
      data_(checked_data(resolved, model_args_)),
      runtime_(start_runtime(config_, job_environment(config_))),
      seed_(common_seed(config_, runtime_)),
      model_(model_args_, config_.training.loss_chunk_bytes),
      fsdp_(runtime_.group(MeshDim::kFsdp), runtime_.group(MeshDim::kDpReplicate),
            sharding_options(config_.training, runtime_.device)),
      walk_(model_, fsdp_, walk_options(config_, model_)),
      grads_(all_grads(walk_)),
      optimizer_(walk_.parameters(), adam_options(config_.optimizer)),
      schedule_(schedule_of(config_)),
      loader_(training_loader(config_, data_, place_of(runtime_, seed_, model_args_))),
      mover_(model_, runtime_.device),
      validator_(config_, runtime_,
                 config_.validation.enable
                     ? validation_loader(config_, data_, place_of(runtime_, seed_, model_args_))
                     : nullptr),
      guard_(runtime_.group(MeshDim::kLoss)) {
  at::globalContext().setDeterministicAlgorithms(config_.debug.deterministic,
                                                 config_.debug.deterministic_warn_only);
  agree(resolved);
  initialise_weights();
  if (config_.training.enable_cpu_offload && runtime_.device.is_cpu())
    log_info("training.enable_cpu_offload: this job runs on the CPU, so everything is in host memory anyway");
  const int64_t batch_ranks = runtime_.mesh->degree(MeshDim::kBatch);
  const auto& training = config_.training;
  if (training.global_batch_size > 0)
    microbatches_ = training.global_batch_size / (training.local_batch_size * batch_ranks);
  make_metrics(resolved, command);
  make_profiler();
}

Trainer::~Trainer() = default;

void Trainer::agree(const ResolvedConfig& resolved) const {
  Fingerprint fingerprint;
  std::istringstream lines(to_toml(resolved));
  std::string section, line;
  while (std::getline(lines, line)) {
    if (line.starts_with("[")) section = line;
    const size_t equals = line.find(" = ");
    if (equals != std::string::npos) fingerprint[section + " " + line.substr(0, equals)] = line;
  }
  fingerprint["binary"] = version_text();
  fingerprint["seed"] = std::to_string(seed_);
  fingerprint["data"] = std::to_string(loader_->fingerprint());
  require_agreement(runtime_.groups->host(), fingerprint);
}

void Trainer::initialise_weights() {
  for (const ShardedParameterPtr& parameter : walk_.parameters()) {
    at::Tensor master = parameter->master();
    initialize(parameter->parameter(), seed_, parameter->first_row(), master);
    if (parameter->has_separate_compute_shard()) parameter->compute_shard().copy_(master);
  }
}

void Trainer::make_metrics(const ResolvedConfig& resolved, const std::vector<std::string>& command) {
  const ParameterCounts counts = count_parameters(model_args_);
  const FlopDimensions dimensions{.parameters = counts.total,
                                  .embedding_parameters = model_args_.vocab_size * model_args_.dim,
                                  .tied_head = model_args_.tied,
                                  .layers = model_args_.n_layers,
                                  .heads = model_args_.n_heads,
                                  .head_dim = model_args_.head_dim,
                                  .seq_len = config_.training.seq_len};
  const bool cuda = runtime_.device.is_cuda();
  memory_ = std::make_unique<MemoryMonitor>(cuda ? runtime_.device.index() : MemoryMonitor::kCpu);
  MetricsOptions options;
  const auto& metrics = config_.metrics;
  options.log_freq = metrics.log_freq;
  options.enable_tensorboard = metrics.enable_tensorboard;
  options.enable_jsonl = metrics.enable_jsonl;
  options.save_for_all_ranks = metrics.save_for_all_ranks;
  options.disable_color_printing = metrics.disable_color_printing;
  options.save_tb_folder = metrics.save_tb_folder;
  options.dump_folder = config_.job.dump_folder;
  options.start_time = static_cast<std::time_t>(
      std::stoll(runtime_.groups->host().all_gather_text(std::to_string(std::time(nullptr))).front()));
  options.rank = runtime_.rank();
  options.prints = rank_prints(runtime_.rank());
  options.flops_per_token_square = flops_per_token_square(dimensions);
  options.flops_per_token_causal = flops_per_token_causal(dimensions);
  MetricsSources sources;
  sources.take_peak_memory = [this] { return memory_->take_peak(); };
  if (cuda) {
    const PeakFlops peak = gpu_peak_flops(runtime_.device_name);
    if (!peak.known)
      log_warning("no peak FLOP/s known for {}: MFU is relative to an A100", runtime_.device_name);
    options.peak_flops = peak.flops;
  } else {
    const at::ScalarType dtype = fsdp_.options().compute_dtype;
    sources.measure_peak_flops = [dtype] { return measure_gemm_peak(dtype); };
  }
  if (runtime_.rank() == 0) {
    const std::filesystem::path folder = config_.job.dump_folder;
    write_run_record(folder,
                     {to_toml(resolved), command, version_text(), runtime_.world_size(), options.start_time});
    if (config_.job.save_config_file) {
      std::filesystem::create_directories((folder / *config_.job.save_config_file).parent_path());
      write_file_atomic(folder / *config_.job.save_config_file, to_json(config_) + "\n");
    }
  }
  metrics_ = std::make_unique<MetricsLogger>(options, std::move(sources));
  metrics_->log_config(to_toml(resolved));
  log_info("Model {} {} size: {} total parameters", config_.model.name, config_.model.flavor,
           python_grouped(static_cast<double>(counts.total), 0));
}

void Trainer::make_profiler() {
  ProfilerOptions options;
  const auto& profiling = config_.profiling;
  options.enable_profiling = profiling.enable_profiling;
  options.save_traces_folder = profiling.save_traces_folder;
  options.profile_freq = profiling.profile_freq;
  options.profiler_active = profiling.profiler_active;
  options.profiler_warmup = profiling.profiler_warmup;
  options.enable_memory_snapshot = profiling.enable_memory_snapshot;
  options.save_memory_snapshot_folder = profiling.save_memory_snapshot_folder;
  options.dump_folder = config_.job.dump_folder;
  options.rank = runtime_.rank();
  options.cuda = runtime_.device.is_cuda();
  MemorySnapshotHooks hooks;
  if (options.cuda) {
    hooks.start_recording = [](size_t entries) {
      device_library().record_memory_history(static_cast<int>(entries));
    };
    hooks.snapshot_pickle = device_library().memory_snapshot;
  }
  profiler_ = std::make_unique<Profiler>(options, std::move(hooks));
}

// All microbatches of a step are fetched first, because the loss is divided by the step's global number of
// valid tokens.
struct Trainer::StepData {
  std::vector<Batch> batches;
  int64_t local_valid = 0;
  int64_t global_valid = 0;
};

Trainer::StepData Trainer::fetch() {
  StepData data;
  for (int64_t i = 0; i < microbatches_; ++i) {
    const double waited = loader_->wait_seconds();
    data.batches.push_back(loader_->next().value());  // the training stream never ends
    const Batch& batch = data.batches.back();
    data.local_valid += valid_tokens(batch);
    metrics_->add_batch(batch.rows * batch.seq_len, loader_->wait_seconds() - waited);
  }
  // One small host-side sum a step: valid tokens, and who was asked to stop, so that all ranks stop after the
  // same step.
  const at::Tensor counts = at::zeros({3}, at::TensorOptions(at::kLong));
  auto* values = counts.data_ptr<int64_t>();
  const StopSignal signal = stop_signal();
  values[0] = data.local_valid;
  values[1] = signal == StopSignal::kInterrupt;
  values[2] = signal == StopSignal::kTerminate;
  runtime_.groups->host().all_reduce_sum(counts);
  data.global_valid = values[0];
  stop_ = static_cast<int>(values[2] > 0   ? StopSignal::kTerminate
                           : values[1] > 0 ? StopSignal::kInterrupt
                                           : StopSignal::kNone);
  if (data.global_valid == 0) throw_data("training: none of the step's tokens has a label to learn from");
  return data;
}

void Trainer::train_step(int64_t step) {
  set_phase(fmt::format("step {} data", step));
  const StepData data = fetch();
  walk_.begin_step(step);
  const at::Tensor scale = at::full({}, 1.0 / static_cast<double>(data.global_valid),
                                    at::TensorOptions(at::kFloat).device(runtime_.device));
  std::vector<at::Tensor> losses;
  for (const Batch& batch : data.batches)
    losses.push_back(walk_.forward_backward(mover_.move(batch), scale, &batch == &data.batches.back()));
  if (const char* folder = std::getenv("HYPERION_DUMP_GRADIENTS"); folder != nullptr && step == 1)
    dump_gradients(folder);

  set_phase(fmt::format("step {} gradient norm", step));
  const at::Tensor norm = global_grad_norm(grads_, runtime_.group(MeshDim::kFsdp));
  std::vector<std::string> sources;
  for (const Batch& batch : data.batches)
    sources.push_back(fmt::format("{}", fmt::join(batch.sources, ", ")));
  const at::Tensor skip = guard_.check(step, losses, norm, [sources](size_t i) { return sources.at(i); });
  clip_gradients(grads_, norm, config_.training.max_norm);
  optimizer_.step(config_.optimizer.lr * schedule_.factor(step - 1), skip);
  guard_.raise(/*wait=*/false);

  tokens_seen_ += config_.training.local_batch_size * config_.training.seq_len * microbatches_ *
                  runtime_.mesh->degree(MeshDim::kBatch);
  if (metrics_->should_log(step)) log_step(step, losses, data, norm);
  profiler_->step(step);
}

void Trainer::log_step(int64_t step, const std::vector<at::Tensor>& losses, const StepData& data,
                       const at::Tensor& norm) {
  set_phase(fmt::format("step {} metrics", step));
  const at::Tensor local = at::stack(losses).sum();
  const at::Tensor sum = local / static_cast<double>(data.global_valid);
  const at::Tensor max = local / static_cast<double>(std::max<int64_t>(1, data.local_valid));
  runtime_.group(MeshDim::kLoss).all_reduce_sum(sum);
  runtime_.group(MeshDim::kLoss).all_reduce_max(max);
  StepMetrics metrics;
  metrics.step = step;
  metrics.global_avg_loss = sum.item<double>();
  metrics.global_max_loss = max.item<double>();
  metrics.grad_norm = norm.item<double>();
  metrics.lr = config_.optimizer.lr * schedule_.factor(step - 1);
  metrics.n_tokens_seen = tokens_seen_;
  metrics_->log(metrics);
}

void Trainer::validate(int64_t step) {
  set_phase(fmt::format("step {} validation", step));
  metrics_->begin_validation();
  const Validator::Result result = validator_.run(walk_, mover_);
  metrics_->add_batch(result.tokens, 0.0);
  metrics_->log_validation(step, result.loss);
}

ExitCode Trainer::run() {
  catch_stop_signals();
  log_info("Training starts at step 1");
  for (int64_t step = 1; step <= config_.training.steps; ++step) {
    try {
      train_step(step);
    } catch (const c10::OutOfMemoryError&) {
      profiler_->out_of_memory(step - 1);
      throw;
    }
    if (validator_.due(step)) validate(step);
    if (step == 1) {
      runtime_.groups->world().barrier();
      runtime_.groups->set_timeout(std::chrono::seconds(config_.comm.train_timeout_seconds));
    }
    if (stop_ != 0) {
      guard_.raise(/*wait=*/true);
      log_warning("stopped by a signal after step {}; checkpointing is off, so the state is not saved", step);
      return stop_ == static_cast<int>(StopSignal::kInterrupt) ? ExitCode::kInterrupted
                                                               : ExitCode::kTerminated;
    }
  }
  guard_.raise(/*wait=*/true);
  set_phase("end of training");
  runtime_.groups->world().barrier();
  log_info("Training completed");
  return ExitCode::kOk;
}

// For tests against other trainers: each parameter's whole fp32 gradient, before clipping, as raw
// little-endian numbers.
void Trainer::dump_gradients(const std::string& folder) const {
  if (runtime_.world_size() != 1) throw_config("HYPERION_DUMP_GRADIENTS needs a job of one rank");
  std::filesystem::create_directories(folder);
  for (const ShardedParameterPtr& parameter : walk_.parameters()) {
    const at::Tensor grad = parameter->grad().to(at::kCPU, at::kFloat).contiguous();
    std::ofstream file(std::filesystem::path(folder) / (parameter->parameter().fqn + ".f32"),
                       std::ios::binary);
    file.write(static_cast<const char*>(grad.data_ptr()), static_cast<std::streamsize>(grad.nbytes()));
    if (!file)
      throw_config("HYPERION_DUMP_GRADIENTS: cannot write {}.f32 into {}", parameter->parameter().fqn,
                   folder);
  }
}

}  // namespace hyperion
