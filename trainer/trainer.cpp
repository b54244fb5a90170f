#include "trainer/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <map>
#include <random>

#include <fmt/format.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>

#include "base/collective.h"
#include "base/durable.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/resources.h"
#include "models/init.h"
#include "parallel/agreement.h"
#include "parallel/phase.h"
#include "parallel/trace_range.h"
#include "trainer/checkpointing/stored_weights.h"
#include "trainer/config/entries.h"
#include "trainer/config/input_path.h"
#include "trainer/config/model_args.h"
#include "trainer/hugging_face/config.h"
#include "trainer/hugging_face/export_files.h"
#include "trainer/optim/grad_clip.h"
#include "trainer/runtime/batch_job.h"
#include "trainer/runtime/version.h"
#include "trainer/setup/monitoring.h"
#include "trainer/setup/options.h"
#include "trainer/setup/preflight.h"
#include "trainer/setup/run_summary.h"
#include "trainer/signals.h"

namespace hyperion {
namespace {

// debug.seed, or a random one of rank 0's.
uint64_t common_seed(const JobConfig& config, const Runtime& runtime) {
  if (config.debug.seed) return static_cast<uint64_t>(*config.debug.seed);
  return std::stoull(from_rank_0(runtime.groups->host(), [] {
    std::random_device device;  // a seed that debug.seed can be set to
    return std::to_string(((uint64_t{device()} << 32) | device()) >> 1);
  }));
}

std::vector<at::Tensor> all_grads(const FsdpModel& model) {
  std::vector<at::Tensor> grads;
  for (const auto& group : model.groups())
    if (group->owned_grads().numel() > 0) grads.push_back(group->owned_grads());
  return grads;
}

LoaderPlace place_of(const Runtime& runtime, uint64_t seed, const ModelArgs& model) {
  return loader_place(*runtime.mesh, runtime.rank(), seed, model);
}

}  // namespace

Trainer::Trainer(const ResolvedConfig& resolved, const std::vector<std::string>& command)
    : configured_(resolved),
      model_args_(model_args(configured_.config.model)),
      data_(checked_data(configured_, model_args_, job_environment(configured_.config).world_size)),
      runtime_(start_runtime(configured_, model_args_, job_environment(configured_.config))),
      configured_seed_(common_seed(configured_.config, runtime_)),
      loader_(training_loader(configured_.config, data_, place_of(runtime_, configured_seed_, model_args_))),
      checkpointer_(open_checkpoints()),
      plan_(plan_run(configured_, model_args_, *runtime_.mesh, configured_seed_, loader_->fingerprint(),
                     job_record(configured_, data_), checkpointer_.chosen())),
      model_(model_args_, config_.training.loss_chunk_bytes),
      float8_(convert_to_float8(
          model_, config_, {runtime_.device.is_cpu(), runtime_.compute_capability, runtime_.device_name})),
      fsdp_(runtime_.group(MeshDim::kFsdp), runtime_.group(MeshDim::kDpReplicate),
            sharding_options(config_.training, runtime_.device, float8_.codec)),
      fsdp_model_(model_, fsdp_, fsdp_model_options(config_, model_)),
      grads_(all_grads(fsdp_model_)),
      optimizer_(fsdp_model_.parameters(), config_.optimizer),
      schedule_(schedule_of(config_)),
      mover_(model_, runtime_.device),
      validator_(config_.validation, runtime_,
                 config_.validation.enable
                     ? validation_loader(config_, data_, place_of(runtime_, plan_.seed, model_args_))
                     : nullptr),
      guard_(runtime_.group(MeshDim::kLoss)),
      memory_mover_(runtime_.device) {
  at::globalContext().setDeterministicAlgorithms(config_.debug.deterministic,
                                                 config_.debug.deterministic_warn_only);
  if (plan_.seed != configured_seed_)
    loader_ = training_loader(config_, data_, place_of(runtime_, plan_.seed, model_args_));
  if (config_.training.enable_cpu_offload && runtime_.device.is_cpu())
    log_info("training.enable_cpu_offload: this job runs on the CPU, so everything is in host memory anyway");
  const auto& training = config_.training;
  if (training.global_batch_size > 0)
    microbatches_ =
        training.global_batch_size / (training.local_batch_size * runtime_.mesh->degree(MeshDim::kBatch));
  for (const std::string& line : float8_.log) log_info("{}", line);
  for (const std::string& warning : float8_.warnings) log_warning("{}", warning);
  if (float8_.counters) log_info("{}", describe_gathers(fsdp_model_.parameters(), fsdp_));
  failpoint("init.model");
  if (!checkpointer_.finished()) initialise_weights();
  make_components();
  load_checkpoint();
  set_phase("start of the metrics");
  memory_ = make_memory_monitor(runtime_);
  metrics_ = make_metrics({configured_, config_, model_args_, command, plan_.seed, seed_origin()}, runtime_,
                          *memory_, state_.step);
  checkpointer_.on_event = [this](int64_t step, const std::string& event, const EventFields& fields) {
    metrics_->event(step, event, fields);
  };
  log_start();
  profiler_ = make_profiler(config_.profiling, config_.job, runtime_, state_.step);
}

// A save under way reads the model and reports to the metrics.
Trainer::~Trainer() {
  checkpointer_.detach();
}

void Trainer::agree() const {
  require_agreement(runtime_.groups->host(), {{"seed", std::to_string(configured_seed_)},
                                              {"data", std::to_string(loader_->fingerprint())},
                                              {"tokenizer", data_.tokenizer->hash()}});
}

// What differs between the ranks is found before anything is done with it.
Checkpointer Trainer::open_checkpoints() const {
  agree();
  return Checkpointer(configured_.config, runtime_, install_root());
}

// Every part of the job's state, in the order in which it is loaded.
void Trainer::make_components() {
  for (const std::string& note : plan_.notes) log_info("{}", note);
  for (const std::string& warning : plan_.warnings) log_warning("{}", warning);
  const auto parameters = fsdp_model_.parameters();
  if (config_.ema.enable) ema_ = std::make_unique<Ema>(parameters, config_.ema);
  components_ = state_components({parameters, *runtime_.mesh, runtime_.rank(), runtime_.device, optimizer_,
                                  ema_.get(), state_, *loader_, plan_, configured_.config});
  if (!checkpointer_.enabled()) return;
  std::vector<StateComponent*> all;
  for (const auto& component : components_) all.push_back(component.get());
  std::map<std::string, std::string> facts = {
      {"config_hash", fmt::format("{:016x}", config_hash(config_entries(configured_.config)))},
      {"version", version_text()},
      {"model", config_.model.name + " " + config_.model.flavor},
      {"mesh", runtime_.mesh->describe()}};
  facts.merge(record_facts(job_record(configured_, data_)));
  CheckpointedState state = {.config = config_,
                             .model = model_args_,
                             .components = std::move(all),
                             .mover = memory_mover_,
                             .facts = std::move(facts)};
  if (config_.checkpoint.last_save_in_hf) {
    state.export_files = hugging_face_files(model_args_, config_.checkpoint.export_dtype,
                                            data_.tokenizer.get(), data_.tokenizer_path);
    state.export_notes = tokenizer_note(data_.tokenizer->hash());
  }
  checkpointer_.attach(std::move(state));
}

void Trainer::load_checkpoint() {
  if (const auto& finished = checkpointer_.finished()) state_.step = finished->step;
  if (checkpointer_.chosen() == nullptr) return;
  checkpointer_.load();
  fsdp_model_.weights_changed();
  const ChosenCheckpoint& chosen = *checkpointer_.chosen();
  resumed_step_ = state_.step;
  if (ema_ && chosen.components.contains("model") && !chosen.components.contains("ema")) ema_->restart();
  if (const Object* config = chosen.find_object(kConfigKey))
    log_info("{}", config_comparison(text_table(*config, chosen.path.string()),
                                     config_entries(configured_.config)));
  if (chosen.components.contains("dataloader") && chosen.find_object(kLoaderPositionKey) == nullptr)
    continue_data();
}

// A checkpoint of another program says nothing about our order of the data: its step does.
void Trainer::continue_data() {
  const int64_t skipped = state_.step * microbatches_;
  log_info(
      "The checkpoint has no position of ours in the data: going on after step {} x global batch, in our "
      "order",
      state_.step);
  Progress progress("skipping data", static_cast<uint64_t>(skipped), "microbatches");
  for (int64_t i = 0; i < skipped; ++i) {
    loader_->next();
    progress.update(static_cast<uint64_t>(i));
  }
}

// The first step has run the FP8 products that the configuration promises, or none of its claims can be
// trusted.
void Trainer::check_float8() {
  const int64_t planned =
      microbatches_ * float8_products(model_, float8_, fsdp_model_options(config_, model_));
  const int64_t found = float8_.counters->products;
  if (found != planned)
    throw_bug("float8: the first step ran {} FP8 products where {} were planned", found, planned);
  log_info("float8: the first step ran {} FP8 products, as planned", found);
}

double Trainer::learning_rate(int64_t step) const {
  return config_.optimizer.lr * schedule_.factor(step - 1 - plan_.schedule_start);
}

void Trainer::initialise_weights() {
  set_phase("initial weights");
  const std::vector<ShardedParameterPtr> parameters = fsdp_model_.parameters();
  uint64_t total = 0, done = 0;
  for (const ShardedParameterPtr& parameter : parameters)
    total += static_cast<uint64_t>(parameter->master().numel());
  Progress progress("initial weights", total, "numbers");
  for (const ShardedParameterPtr& parameter : parameters) {
    at::Tensor master = parameter->master();
    // In pieces for the progress line: an element depends on its place alone.
    const int64_t rows = master.size(0);
    const int64_t step = std::max<int64_t>(1, (int64_t{1} << 24) / parameter->parameter().row_numel());
    for (int64_t row = 0; row < rows; row += step) {
      at::Tensor piece = master.narrow(0, row, std::min(step, rows - row));
      initialize(parameter->parameter(), plan_.seed, parameter->first_row() + row, piece);
      progress.update(done += static_cast<uint64_t>(piece.numel()));
    }
    if (parameter->has_separate_compute_shard()) parameter->compute_shard().copy_(master);
  }
  fsdp_model_.weights_changed();
}

std::string Trainer::seed_origin() const {
  if (plan_.seed != configured_seed_) return "saved in the checkpoint";
  return configured_.config.debug.seed ? "debug.seed" : "chosen by rank 0";
}

// What is running, for whoever reads the log later.
void Trainer::log_start() const {
  for (const std::string& line :
       run_summary(config_, {runtime_.device_name, at::get_num_threads(), runtime_.mesh->describe(),
                             runtime_.mesh->degree(MeshDim::kBatch)}))
    log_info("{}", line);
  log_info("Seed: {} ({})", plan_.seed, seed_origin());
  for (const std::string& line : runtime_.groups->network()) log_info("{}", line);
  const ChosenCheckpoint* chosen = checkpointer_.chosen();
  EventFields start = {{"steps", config_.training.steps},
                       {"ranks", int64_t{runtime_.world_size()}},
                       {"seed", std::to_string(plan_.seed)}};  // text: many JSON readers keep 53 bits only
  if (chosen != nullptr) {
    const bool own = chosen->source == LoadSource::kOwn;
    start.emplace_back(own ? "resumed_from" : "initial_load_path", chosen->path.string());
  }
  metrics_->event(state_.step, "start", start);
  if (checkpointer_.finished()) return;
  if (const auto problem = export_problem(model_args_))
    log_info("This model cannot be exported to Hugging Face (by ckpt convert or last_save_in_hf): {}",
             problem->text);
  if (chosen != nullptr && chosen->components.contains("model")) return;  // the load has said so
  log_info("Weights: initialised at random (seed {})", plan_.seed);
  if (config_.model.flavor == kFlavorFromHf && !is_dry_run(config_))
    log_warning(
        "model.flavor = \"from_hf\" takes the model's shape alone: to start from its weights set "
        "checkpoint.enable = true and checkpoint.initial_load_in_hf = true");
}

// All microbatches of a step are fetched first, because the loss is divided by the step's global number of
// valid tokens.
struct Trainer::StepData {
  std::vector<Batch> batches;
  int64_t local_valid = 0;
  int64_t global_valid = 0;
};

Trainer::StepData Trainer::fetch() {
  const TraceRange range("data");
  StepData data;
  for (int64_t i = 0; i < microbatches_; ++i) {
    const double waited = loader_->wait_seconds();
    data.batches.push_back(loader_->next().value());  // the training stream never ends
    const Batch& batch = data.batches.back();
    data.local_valid += valid_tokens(batch);
    metrics_->add_batch(batch.rows * batch.seq_len, loader_->wait_seconds() - waited);
  }
  // One small host-side sum a step: valid tokens, who was asked to stop, whose save failed: all ranks act on
  // it after the same step.
  const at::Tensor counts = at::zeros({4}, at::TensorOptions(at::kLong));
  auto* values = counts.data_ptr<int64_t>();
  const StopSignal signal = stop_signal();
  values[0] = data.local_valid;
  values[1] = signal == StopSignal::kInterrupt;
  values[2] = signal == StopSignal::kTerminate;
  values[3] = checkpointer_.failed();
  runtime_.groups->host().all_reduce_sum(counts);
  data.global_valid = values[0];
  stop_ = static_cast<int>(values[2] > 0   ? StopSignal::kTerminate
                           : values[1] > 0 ? StopSignal::kInterrupt
                                           : StopSignal::kNone);
  save_failed_ = values[3] > 0;
  if (data.global_valid == 0 && stop_ == 0)
    throw_data("training: none of the step's tokens has a label to learn from");
  return data;
}

// False: the ranks agreed to stop, so the step is not made and its data are not consumed.
bool Trainer::train_step(int64_t step) {
  set_phase(fmt::format("step {} data", step));
  failpoint("step.data");
  const LoaderState before = loader_->state();
  const StepData data = fetch();
  if (stop_ != 0) {
    loader_->load_state(before);
    return false;
  }
  set_running_step(step);
  if (const uint64_t epoch = loader_->state().position.epoch; epoch != before.position.epoch)
    log_info("The training data start over in step {}: epoch {}", step, epoch + 1);
  fsdp_model_.begin_step(step);
  const at::Tensor scale = at::full({}, 1.0 / static_cast<double>(data.global_valid),
                                    at::TensorOptions(at::kFloat).device(runtime_.device));
  std::vector<at::Tensor> losses;
  for (const Batch& batch : data.batches)
    losses.push_back(fsdp_model_.forward_backward(mover_.move(batch), scale, &batch == &data.batches.back()));
  if (const char* folder = std::getenv("HYPERION_DUMP_GRADIENTS"); folder != nullptr && step == 1)
    dump_gradients(folder);

  failpoint("step.opt");
  set_phase(fmt::format("step {} gradient norm", step));
  at::Tensor norm;
  {
    const TraceRange range("gradient norm");
    norm = global_grad_norm(grads_, runtime_.group(MeshDim::kFsdp));
  }
  std::vector<std::string> sources;
  for (const Batch& batch : data.batches)
    sources.push_back(fmt::format("{}", fmt::join(batch.sources, ", ")));
  const at::Tensor skip = guard_.check(step, losses, norm, [sources](size_t i) { return sources.at(i); });
  {
    const TraceRange range("gradient clipping");
    clip_gradients(grads_, norm, config_.training.max_norm);
  }
  checkpointer_.wait();
  {
    const TraceRange range("optimizer");
    optimizer_.step(learning_rate(step), skip);
    if (ema_) ema_->update(step, skip);
    fsdp_model_.weights_changed();
  }
  guard_.raise(/*wait=*/false);

  state_.step = step;
  state_.tokens_seen += config_.training.local_batch_size * config_.training.seq_len * microbatches_ *
                        runtime_.mesh->degree(MeshDim::kBatch);
  if (metrics_->should_log(step)) log_step(step, losses, data, norm);
  profiler_->step(step);
  return true;
}

void Trainer::log_step(int64_t step, const std::vector<at::Tensor>& losses, const StepData& data,
                       const at::Tensor& norm) {
  set_phase(fmt::format("step {} metrics", step));
  const TraceRange range("metrics");
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
  metrics.lr = learning_rate(step);
  metrics.n_tokens_seen = state_.tokens_seen;
  if (resumed_step_ > 0 && !std::isnan(state_.last_loss)) {  // so that a jump of the curve is seen
    if (state_.last_loss_step > 0)
      log_info(
          "Resumed after step {}: the loss of step {}, the last one logged before, was {:.5f}; that of "
          "step {}, the first one logged now, is {:.5f}",
          resumed_step_, state_.last_loss_step, state_.last_loss, step, metrics.global_avg_loss);
    metrics.extra = {{"resume/step", static_cast<double>(resumed_step_)},
                     {"resume/last_loss", state_.last_loss}};
  }
  resumed_step_ = 0;
  state_.last_loss = metrics.global_avg_loss;
  state_.last_loss_step = step;
  metrics_->log(metrics);
}

void Trainer::validate(int64_t step) {
  set_phase(fmt::format("step {} validation", step));
  const TraceRange range("validation");
  metrics_->begin_validation();
  const bool averaged = ema_ && config_.ema.validate_with_ema;
  if (averaged) {
    checkpointer_.wait();  // the averages take the weights' place for a while
    ema_->swap_in();
    fsdp_model_.weights_changed();
  }
  const Validator::Result result = validator_.run(fsdp_model_, mover_);
  if (averaged) {
    ema_->swap_out();
    fsdp_model_.weights_changed();
  }
  metrics_->add_batch(result.tokens, 0.0);
  metrics_->log_validation(step, result.loss);
}

ExitCode Trainer::run() {
  const auto ended = [this](const std::string& reason, ExitCode code) {
    metrics_->event(state_.step, "end", {{"reason", reason}, {"exit_code", static_cast<int64_t>(code)}});
  };
  try {
    const ExitCode code = train();
    ended(code == ExitCode::kOk ? "completed" : "stopped by a signal", code);
    return code;
  } catch (const Error& error) {
    ended(error.what(), error.code());
    throw;
  } catch (const std::exception& error) {
    const auto resource = exhausted_resource(error);
    ended(resource ? resource->what : error.what(), resource ? ExitCode::kResources : ExitCode::kBug);
    throw;
  }
}

ExitCode Trainer::train() {
  const ChosenCheckpoint* chosen = checkpointer_.chosen();
  const auto& finished = checkpointer_.finished();
  const bool nothing_left = finished || (state_.step >= config_.training.steps && chosen != nullptr &&
                                         chosen->source == LoadSource::kOwn);
  if (finished) {
    log_info("Nothing is left to do: {} holds the weights after step {}, and training.steps = {}{}",
             finished->path.string(), finished->step, config_.training.steps,
             finished->resumable_step
                 ? fmt::format("; with more steps this run would go on from step-{}, the newest full "
                               "checkpoint, and train the steps after it again",
                               *finished->resumable_step)
                 : "");
  } else if (nothing_left) {
    log_info("Nothing is left to do: step {} is done already, and training.steps = {}; raise it to train on",
             state_.step, config_.training.steps);
  }
  if (!nothing_left) {
    if (checkpointer_.enabled() && config_.checkpoint.create_seed_checkpoint) {
      checkpointer_.save_seed();
      log_info("Created a seed checkpoint");
      return ExitCode::kOk;
    }
    checkpointer_.preflight(state_.step);
  }
  const int64_t first = state_.step + 1;
  catch_stop_signals(rank_prints(runtime_.rank()));
  if (!nothing_left) log_info("Training starts at step {}", first);
  SaveTimeCheck save_times(config_.checkpoint, signal_lead());
  for (int64_t step = first; step <= config_.training.steps; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    try {
      if (!train_step(step)) return stopped(step - 1, /*trained=*/step > first);
    } catch (const c10::OutOfMemoryError&) {
      profiler_->out_of_memory(step - 1);
      throw;
    }
    if (step == first && float8_.counters) check_float8();
    if (step > first && checkpointer_.enabled())
      save_times.after_step(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
                            checkpointer_.save_seconds());
    if (checkpointer_.enabled()) {
      const bool last = step == config_.training.steps;
      // Ends the job before the state of a step whose loss or norm is not finite is saved; the save itself
      // looks at the numbers of the state.
      guard_.raise(/*wait=*/checkpointer_.due(step) || last);
      checkpointer_.save(step, last, save_failed_);
    }
    if (validator_.due(step)) validate(step);
    if (step == first) {
      runtime_.groups->world().barrier();
      runtime_.groups->set_timeout(std::chrono::seconds(config_.comm.train_timeout_seconds));
    }
  }
  guard_.raise(/*wait=*/true);
  checkpointer_.finish();
  set_phase("end of training");
  runtime_.groups->world().barrier();
  failpoint("shutdown");
  log_info("Training completed");
  return ExitCode::kOk;
}

// The job ends after `step`, as a signal asked.
ExitCode Trainer::stopped(int64_t step, bool trained) {
  log_info("Stopping after step {}, as a signal asked", step);
  guard_.raise(/*wait=*/true);
  const bool interrupted = stop_ == static_cast<int>(StopSignal::kInterrupt);
  if (!checkpointer_.enabled() || config_.checkpoint.load_only) {
    log_warning("stopped by a signal after step {}; checkpointing is off, so the state is not saved", step);
    return interrupted ? ExitCode::kInterrupted : ExitCode::kTerminated;
  }
  if (trained) checkpointer_.save_stopped(step);
  log_warning("stopped by {} after step {}; {}, start again with the same command to go on",
              interrupted ? "Ctrl-C" : "a signal", step,
              trained ? "the state is saved" : "this run made no step, so there is nothing to save");
  return interrupted ? ExitCode::kInterrupted : ExitCode::kStoppedSaved;
}

std::string Trainer::state_table() const {
  std::string table;
  for (const auto& component : components_) {
    for (const TensorState& tensor : component->tensors())
      table +=
          fmt::format("{:<72} {:<9} [{}]  {} shards x {} replicas\n", tensor.key, torch_name(tensor.dtype),
                      fmt::join(tensor.shape, ", "), tensor.placement.shards, tensor.placement.replicas);
    for (const ObjectState& object : component->objects())
      table += fmt::format("{:<72} {}\n", object.key, repr(object.value, 60));
  }
  return table;
}

// For tests against other trainers: each parameter's whole fp32 gradient, before clipping, as raw
// little-endian numbers.
void Trainer::dump_gradients(const std::string& folder) const {
  if (runtime_.world_size() != 1) throw_config("HYPERION_DUMP_GRADIENTS needs a job of one rank");
  make_folders(folder);
  for (const ShardedParameterPtr& parameter : fsdp_model_.parameters()) {
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
