#include "trainer/trainer.h"

#include <chrono>
#include <cmath>

#include <fmt/format.h>

#include <ATen/Context.h>

#include "base/clock.h"
#include "base/counted.h"
#include "base/failpoint.h"
#include "base/gpu_fault.h"
#include "base/log.h"
#include "base/progress.h"
#include "parallel/comm/trace_range.h"
#include "parallel/job/phase.h"
#include "trainer/build/attention_choice.h"
#include "trainer/build/kernel_choice.h"
#include "trainer/build/model_options.h"
#include "trainer/config/input_path.h"
#include "trainer/config/print.h"
#include "trainer/config/validate.h"
#include "trainer/data/source_report.h"
#include "trainer/engine/layer_metrics.h"
#include "trainer/monitoring.h"
#include "trainer/optim/parameter_groups.h"
#include "trainer/plan/group_report.h"
#include "trainer/preflight.h"
#include "trainer/runtime/batch_job.h"

namespace hyperion::trainer {
namespace {

// Skips the data before `step`: a checkpoint of another program has no position in our order of the data.
void skip_trained_data(data::DataLoader& loader, int64_t step, int64_t skipped) {
  log_info(
      "The checkpoint has no data position of Hyperion: continuing after the sequences of {} steps, in our "
      "order",
      step);
  Progress progress("skipping data", static_cast<uint64_t>(skipped), "microbatches");
  for (int64_t i = 0; i < skipped; ++i) {
    loader.next();
    progress.update(static_cast<uint64_t>(i));
  }
}

}  // namespace

Trainer::Trainer(const config::ResolvedConfig& resolved, const std::vector<std::string>& command)
    : job_(start_job(resolved)),
      // The tokens of a dry run's rank count, since no other rank counts them.
      agreement_(*job_.runtime.groups, *job_.runtime.mesh, job_.runtime.dry_run ? 0 : job_.runtime.rank(),
                 job_.runtime.device, [this] { return checkpointer_->failed(); }),
      memory_mover_(job_.runtime.device) {
  parallel::set_phase("choice of the checkpoint to continue");
  checkpointer_.emplace(job_.configured.config, job_.runtime, config::install_root());
  plan_ = plan();
  follow_plan(job_, plan_);

  parallel::set_phase("construction of model and optimizer");
  make_model();
  log_model();
  failpoint("init.model");
  make_state();
  load_checkpoint();

  parallel::set_phase("start of the metrics");
  start_metrics(command);
  profiler_ = make_profiler(config().profiling, config().job, job_.runtime, state_.step);
}

// Makes the model with its optimizer, the step that trains it, and its data.
void Trainer::make_model() {
  const Runtime& runtime = job_.runtime;
  const ModelContext context{
      .mesh = *runtime.mesh,
      .rank = runtime.rank(),
      .groups = *runtime.groups,
      .device = runtime.device,
      .float8 = {runtime.device.is_cpu(), runtime.compute_capability, runtime.device_name},
      .pipeline = job_.pipeline ? &job_.pipeline->pipeline : nullptr,
      .seed = plan_.seed};
  choose_kernels(context.float8);
  log_expert_products(job_.model, config(), context.float8);
  choose_attention(job_.model, config(), runtime.device, runtime.groups->host());
  model_ = make_model_and_optimizer(job_.model, config(), context);
  training_step_.emplace(model_, config(), context);
  if (config().validation.enable) {
    const parallel::PhaseGuard phase("start of the validation data");
    validator_.emplace(
        config().validation, runtime,
        validation_loaders(config(), job_.data,
                           loader_context(*runtime.mesh, runtime.rank(), plan_.seed, job_.model)));
  }
  at::globalContext().setDeterministicAlgorithms(config().debug.deterministic,
                                                 config().debug.deterministic_warn_only);
  batches_.emplace(config().training, batch_ranks());
  gradient_dump_ = gradient_dump_folder();
}

void Trainer::log_model() const {
  if (config().training.enable_cpu_offload && job_.runtime.device.is_cpu())
    log_info("training.enable_cpu_offload: this job runs on the CPU, so everything is in host memory anyway");
  std::string of_stages;  // a rank counts FP8 of its own stages
  if (job_.pipeline) {
    log_info("Pipeline: {}", job_.pipeline->text);
    for (const std::string& warning : job_.pipeline->warnings) log_warning("{}", warning);
    of_stages = fmt::format(" (of the stages of rank {} alone)", job_.runtime.rank());
  }
  for (const std::string& line : describe_groups(plan_.config.optimizer, job_.model))
    log_info("Optimizer: {}", line);
  for (const std::string& line : model_.float8.log) log_info("{}", line);
  for (const std::string& warning : model_.float8.warnings) log_warning("{}", warning);
  if (model_.float8.counters) log_info("{}{}", describe_gathers(model_.parameters, *model_.fsdp), of_stages);
  if (const auto products = separate_products(*model_.transformer, *model_.fsdp)) log_info("{}", *products);
}

// Initialises the weights unless a checkpoint has them, and lists the state that checkpoints save.
void Trainer::make_state() {
  const Runtime& runtime = job_.runtime;
  const checkpointing::ChosenCheckpoint* chosen = checkpointer_->chosen();
  const bool loads_weights = chosen != nullptr && chosen->components.contains(checkpoint::kModelComponent);
  if (!checkpointer_->finished() && !loads_weights) initialise_weights(model_, plan_.seed);
  for (const std::string& note : plan_.notes) log_info("{}", note);
  for (const std::string& warning : plan_.warnings) log_warning("{}", warning);
  if (config().ema.enable) model_.ema = std::make_unique<optim::Ema>(model_.parameters, config().ema);
  components_ = state_components({model_, *runtime.mesh, runtime.rank(), runtime.device, state_, *job_.loader,
                                  plan_, job_.configured.config});
  if (checkpointer_->enabled())
    checkpointer_->attach(checkpointed_state(job_, plan_, chosen, components_, memory_mover_));
}

void Trainer::start_metrics(const std::vector<std::string>& command) {
  const RunDescription run = {job_, config(), command, plan_.seed};
  metrics_ = make_metrics(run, *checkpointer_, state_);
  checkpointer_->on_event = [this](int64_t step, const std::string& event,
                                   const metrics::JsonFields& fields) {
    metrics_->event(step, event, fields);
  };
  training_step_->guard().on_skip = [this](int64_t step, const std::string& reason) {
    metrics_->event(step, "step_skipped", {{"reason", reason}});
  };
  log_start(run, *checkpointer_, state_, *metrics_);
  if (config::is_dry_run(config())) return;
  std::optional<double> planned_bubble;
  if (job_.pipeline) planned_bubble = job_.pipeline->bubble;
  rank_monitor_.emplace(job_.runtime, planned_bubble);
  if (const models::ExpertArgs& experts = job_.model.experts; experts.are_present())
    collapse_watch_.emplace(experts.num_experts, experts.top_k, experts.load_balance_coeff);
}

checkpointing::ResumePlan Trainer::plan() const {
  return plan_run(job_.configured, job_.model, *job_.runtime.mesh, job_.seed, job_.loader->initial_state(),
                  job_.record, checkpointer_->chosen());
}

void Trainer::load_checkpoint() {
  if (const auto& finished = checkpointer_->finished()) state_.step = finished->step;
  if (checkpointer_->chosen() == nullptr) return;
  const std::filesystem::path planned = checkpointer_->chosen()->path;
  checkpointer_->load();
  copy_tied_table(model_);
  model_.stage->weights_changed();
  const checkpointing::ChosenCheckpoint& chosen = *checkpointer_->chosen();
  if (chosen.path != planned) {  // damage was found, and the one before it was loaded
    checkpointing::ResumePlan again = plan();
    if (again.seed != plan_.seed ||
        config::config_entries(again.config) != config::config_entries(plan_.config))
      throw_data(
          "{} is damaged, and {} before it was saved with other settings than those that this start has "
          "prepared for: start again with {}",
          planned.string(), chosen.path.string(),
          config::override_text(
              "checkpoint.load_step",
              std::to_string(checkpoint::step_of_name(chosen.path.filename().string()).value_or(0))));
    for (const std::string& note : again.notes) log_info("{}", note);
    plan_ = std::move(again);
  }
  resumed_step_ = state_.step;
  if (model_.ema && chosen.components.contains(checkpoint::kModelComponent) &&
      !chosen.components.contains(checkpoint::kEmaComponent))
    model_.ema->restart();
  if (const checkpoint::Object* saved = chosen.find_object(checkpoint::kConfigKey))
    log_info("{}", config::config_comparison(checkpointing::text_table(*saved, chosen.path.string()),
                                             config::config_entries(job_.configured.config)));
  if (chosen.components.contains(checkpoint::kLoaderComponent) &&
      chosen.find_object(checkpoint::kLoaderPositionKey) == nullptr)
    skip_trained_data(*job_.loader, state_.step,
                      config::BatchSchedule(config().training, batch_ranks()).sequences_up_to(state_.step) /
                          (config().training.local_batch_size * batch_ranks()));
  batches_.emplace(config().training, batch_ranks(), config::TrainedSoFar{state_.step, state_.tokens_seen});
  training_step_->guard().restore(state_.step,
                                  {state_.skipped_steps, state_.gradient_norms, state_.recently_skipped});
}

ExitCode Trainer::run() {
  using parallel::FailureDetector;
  const auto ended = [this](const std::string& reason, ExitCode code, FailureDetector::End end) {
    job_.runtime.groups->leave(end);
    metrics_->event(state_.step, "end", {{"reason", reason}, {"exit_code", static_cast<int64_t>(code)}});
  };
  try {
    const ExitCode code = train();
    ended(code == ExitCode::kOk ? "completed" : "stopped by a signal", code, FailureDetector::End::kDone);
    return code;
  } catch (const Error& error) {
    ended(error.what(), error.code(), FailureDetector::End::kFailed);
    if (error.code() == ExitCode::kNonFinite) finish_saves();
    throw;
  } catch (const std::exception& error) {
    const Error meant = error_from(error);
    ended(meant.what(), meant.code(), FailureDetector::End::kFailed);
    throw;
  }
}

// All ranks have found the same numbers not finite: the save of an earlier step that is in flight is
// complete.
void Trainer::finish_saves() {
  try {
    checkpointer_->finish();
  } catch (const std::exception& error) {
    log_error("{}", error.what());
  }
}

// Says so when the run has made all its steps.
bool Trainer::is_finished() const {
  if (const auto& finished = checkpointer_->finished()) {
    log_info("Nothing is left to do: {} holds the weights after step {}, and training.steps = {}{}{}",
             finished->path.string(), finished->step, config().training.steps,
             finished->resumable_step
                 ? fmt::format("; with more steps this run would resume from step-{}, the newest full "
                               "checkpoint, and train the steps after it again",
                               *finished->resumable_step)
                 : "",
             checkpointer_->last_save_remedy(finished->path, finished->step));
    return true;
  }
  const checkpointing::ChosenCheckpoint* chosen = checkpointer_->chosen();
  if (chosen == nullptr || config().checkpoint.create_seed_checkpoint ||
      state_.step < config().training.steps)
    return false;
  log_info("Nothing is left to do: step {} is done already, and training.steps = {}; raise it to train on{}",
           state_.step, config().training.steps, checkpointer_->last_save_remedy(chosen->path, state_.step));
  return true;
}

ExitCode Trainer::train() {
  if (is_finished()) {
    handle_stop_signals(SignalPhase::kTraining, job_.runtime.prints);
    return complete();
  }
  const auto& options = config().checkpoint;
  if (checkpointer_->enabled()) {
    audit_replicas(state_.step);  // what it starts with may be saved
    if (options.create_seed_checkpoint) {
      checkpointer_->save_seed();
      log_info("Created a seed checkpoint");
      return ExitCode::kOk;
    }
  }
  checkpointer_->preflight(state_.step);
  const int64_t first = state_.step + 1, last = config().training.steps;
  const bool dry_run = config::is_dry_run(config());
  dry_run ? set_running_step(first, first) : agreement_.start(first);
  handle_stop_signals(dry_run ? SignalPhase::kDryRun : SignalPhase::kTraining, job_.runtime.prints);
  log_info("Training starts at step {}", first);
  SaveTimeCheck save_times(options, signal_lead());
  int64_t handled_failure = 0;  // the step after which all ranks dealt with a failed save
  for (int64_t step = first; step <= last; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    if (rank_monitor_ && metrics_->should_log(step)) rank_monitor_->start_step();
    if (step > first) log_batch_change(step);
    const std::optional<StepInput> input = fetch(step);
    if (!input) return stopped(step - 1, agreement_.agreed().stop, /*trained=*/step > first);
    try {
      train_step(step, *input);
    } catch (const c10::OutOfMemoryError&) {
      profiler_->out_of_memory(step - 1);
      throw;
    }
    if (step == first && model_.float8.counters)
      log_info("float8: the first step ran {} FP8 products{}", model_.float8.counters->products,
               job_.pipeline ? fmt::format(" in the stages of rank {}", job_.runtime.rank()) : "");
    if (step == first) audit_replicas(step);
    if (checkpointer_->enabled()) {
      if (step > first) save_times.after_step(seconds_since(begin), checkpointer_->save_seconds());
      // Ends the job before the state of a step whose loss or norm is not finite is saved; the save itself
      // looks at the numbers of the state.
      const bool saves = checkpointer_->due(step) || step == last;
      read_checks(/*wait=*/saves);
      if (saves && step > first) audit_replicas(step);
      // A rank reports its failure in every step until all ranks have dealt with it.
      const StepFlags& agreed = agreement_.agreed();
      const bool save_failed = agreed.save_failed && agreed.step > handled_failure;
      if (save_failed) handled_failure = step;
      if (saves) store_skips(step);
      checkpointer_->save(step, {.last = step == last, .save_failed = save_failed});
    }
    if (validator_ && validator_->due(step)) validate(step);
    if (step == first) {
      job_.runtime.groups->host().barrier();
      job_.runtime.groups->set_timeout(std::chrono::seconds(config().comm.train_timeout_seconds));
    }
  }
  return complete();
}

ExitCode Trainer::complete() {
  training_step_->guard().raise(/*wait=*/true);
  checkpointer_->finish();
  parallel::set_phase("end of training");
  job_.runtime.groups->host().barrier();
  failpoint("shutdown");
  log_info("Training completed");
  return ExitCode::kOk;
}

// nullopt where a rank was asked to stop: the step is not made, and the loader goes back to before it.
std::optional<StepInput> Trainer::fetch(int64_t step) {
  if (agreement_.agreed().stop != StopSignal::kNone) return std::nullopt;
  parallel::set_phase(fmt::format("step {} data", step));
  failpoint("step.data");
  const parallel::TraceRange range("data");
  const data::LoaderState before = job_.loader->state();
  StepInput input;
  for (int64_t i = 0; i < batches_->microbatches_of(step); ++i) {
    const double waited = job_.loader->wait_seconds();
    training_step_->add(job_.loader->next().value(), input);  // the training stream never ends
    const data::Batch& batch = input.batches.back();
    metrics_->add_batch(batch.rows * batch.seq_len, job_.loader->wait_seconds() - waited);
  }
  const std::optional<at::Tensor> global_valid = agreement_.before_step(step, input.local_valid);
  if (!global_valid) {
    job_.loader->load_state(before);
    return std::nullopt;
  }
  input.global_valid = *global_valid;
  for (const std::string& event : source_events(before, job_.loader->state(), step)) log_info("{}", event);
  return input;
}

// Says so where a ramp has another batch than in the step before.
void Trainer::log_batch_change(int64_t step) {
  const int64_t before = batches_->sequences_of(step - 1), now = batches_->sequences_of(step);
  if (before == now) return;
  log_info("The global batch changes from {} to {} in step {}: {} tokens, {} on each data-parallel rank",
           before, counted(now, "sequence"), step,
           format_count(static_cast<uint64_t>(batches_->tokens_of(step))),
           counted(batches_->microbatches_of(step), "microbatch", "microbatches"));
  metrics_->event(step - 1, "batch_changed", {{"sequences", now}, {"tokens", batches_->tokens_of(step)}});
}

// The step itself is TrainingStep's; here is what the job does between its parts.
void Trainer::train_step(int64_t step, const StepInput& input) {
  const bool logs = metrics_->should_log(step);
  models::LayerMetrics reported{.activations = config().metrics.log_layer_activations,
                                .losses_of_rows = !job_.loader->state().named_sources().empty()};
  models::LayerMetrics* const reports = logs ? &reported : nullptr;
  const StepLosses losses = training_step_->make_gradients(step, input, reports);
  if (step == 1 && gradient_dump_)
    dump_gradients(*gradient_dump_, job_.runtime.rank(), job_.runtime.world_size(), model_.parameters);
  const at::Tensor norm = training_step_->gradient_norm(step);
  const CheckedGradients checked =
      training_step_->check_and_clip(agreement_.flags(step), input, losses, norm);
  checkpointer_->wait();  // a save in the background reads what the update writes
  training_step_->update(step, checkpointing::learning_rate(plan_, step), checked, reports);
  if (rank_monitor_ && logs) rank_monitor_->stop_step();
  read_checks(/*wait=*/logs);  // logging waits for the step's numbers anyway

  state_.step = step;
  state_.tokens_seen += batches_->tokens_of(step);
  metrics_->step_done(step, state_.tokens_seen);
  if (logs) log_step(step, input, losses, checked.norm, reported);
  profiler_->step(step);
}

// Puts what the guard knows of skipped steps into the state that is saved.
void Trainer::store_skips(int64_t step) {
  SkipState skips = training_step_->guard().skips(step);
  state_.skipped_steps = skips.skipped;
  state_.recently_skipped = std::move(skips.recent);
  state_.gradient_norms = std::move(skips.norms);
}

// Ends the job where the loss of a step was not finite.
void Trainer::read_checks(bool wait) {
  training_step_->guard().raise(wait);
  agreement_.read(training_step_->guard().agreed());
}

// Throws Error(kBug) if a tensor that ranks replicate differs between them: a save stores it once.
void Trainer::audit_replicas(int64_t step) const {
  if (config::is_dry_run(config())) return;  // its other ranks do not exist
  const std::vector<parallel::ReplicatedTensor> replicated =
      replicated_state(model_.parameters, *model_.optimizer, model_.stage->balances(), model_.fsdp->shard(),
                       model_.fsdp->replicate(), model_.fsdp->tensor(), model_.tied.get());
  if (replicated.empty()) return;
  parallel::set_phase(fmt::format("step {} audit of replicas", step));
  const parallel::TraceRange range("audit of replicas");
  parallel::audit_replicas(replicated);
}

void Trainer::log_step(int64_t step, const StepInput& input, const StepLosses& losses, const at::Tensor& norm,
                       const models::LayerMetrics& reported) {
  parallel::set_phase(fmt::format("step {} metrics", step));
  const parallel::TraceRange range("metrics");
  const TrainingStep::Loss loss = training_step_->reduce_losses(input, losses);
  metrics::StepMetrics metrics{.step = step,
                               .global_avg_loss = loss.mean,
                               .global_max_loss = loss.max,
                               .grad_norm = norm.item<double>(),
                               .lr = checkpointing::learning_rate(plan_, step),
                               .n_tokens_seen = state_.tokens_seen,
                               .extra = keep_worst_block(reduce_layer_metrics(
                                   reported, job_.runtime.groups->all_ranks(),
                                   job_.runtime.groups->get(parallel::MeshDim::kPp), job_.runtime.device))};
  if (!config().training.global_batch_ramp.empty())
    metrics.extra.emplace_back("global_batch_size", static_cast<double>(batches_->sequences_of(step)));
  if (training_step_->guard().rules().any())
    metrics.extra.emplace_back("skipped_steps", static_cast<double>(training_step_->guard().skipped()));
  for (const auto& metric : optim::rates_of_groups(config().optimizer, metrics.lr))
    metrics.extra.push_back(metric);
  for (const auto& metric : source_metrics(job_.loader->state())) metrics.extra.push_back(metric);
  const auto sources = job_.loader->state().named_sources();
  const std::vector<double> losses_of_sources =
      training_step_->reduce_source_losses(input, reported, sources.size());
  for (size_t i = 0; i < losses_of_sources.size(); ++i)
    if (!std::isnan(losses_of_sources[i]))
      metrics.extra.emplace_back(fmt::format("sources/{}/loss", sources[i].name), losses_of_sources[i]);
  if (collapse_watch_)
    if (const std::string warning = collapse_watch_->add(metrics.extra); !warning.empty())
      log_warning("step {}: {}", step, warning);
  if (rank_monitor_)
    for (const auto& metric : rank_monitor_->log_step(step)) metrics.extra.push_back(metric);
  if (resumed_step_ > 0 && !std::isnan(state_.last_loss)) {  // so that a jump of the curve is seen
    if (state_.last_loss_step > 0)
      log_info(
          "Resumed after step {}: the loss of step {}, the last one logged before, was {:.5f}; that of "
          "step {}, the first one logged now, is {:.5f}",
          resumed_step_, state_.last_loss_step, state_.last_loss, step, metrics.global_avg_loss);
    metrics.extra.emplace_back("resume/step", static_cast<double>(resumed_step_));
    metrics.extra.emplace_back("resume/last_loss", state_.last_loss);
  }
  resumed_step_ = 0;
  state_.last_loss = metrics.global_avg_loss;
  state_.last_loss_step = step;
  metrics_->log(metrics);
}

void Trainer::validate(int64_t step) {
  parallel::set_phase(fmt::format("step {} validation", step));
  const parallel::TraceRange range("validation");
  metrics_->begin_validation();
  const bool averaged = model_.ema && config().ema.validate_with_ema;
  if (averaged) {
    checkpointer_->wait();  // the averages take the weights' place for a while
    model_.ema->swap_in();
    model_.stage->weights_changed();
  }
  const Validator::Result result =
      validator_->run(*model_.schedule, training_step_->mover(),
                      config::microbatch_rows(config(), config().validation.local_batch_size));
  if (averaged) {
    model_.ema->swap_out();
    model_.stage->weights_changed();
  }
  metrics_->add_batch(result.tokens, 0.0);
  metrics::MetricList of_sources;
  for (const auto& [name, loss] : result.sources)
    of_sources.emplace_back(fmt::format("{}{}", metrics::kValidationLossOfSource, name), loss);
  metrics_->log_validation(step, result.loss, of_sources);
}

// The job ends after `step`, as a signal asked.
ExitCode Trainer::stopped(int64_t step, StopSignal signal, bool trained) {
  log_info("Stopping after step {}, as a signal asked", step);
  training_step_->guard().raise(/*wait=*/true);
  const bool interrupted = signal == StopSignal::kInterrupt;
  if (!checkpointer_->enabled() || config().checkpoint.load_only) {
    log_warning("stopped by a signal after step {}; checkpointing is off, so the state is not saved", step);
    return interrupted ? ExitCode::kInterrupted : ExitCode::kTerminated;
  }
  if (trained) {
    audit_replicas(step);
    store_skips(step);
    checkpointer_->save_stopped(step);
  }
  log_warning("stopped by {} after step {}; {}, start again with the same command to resume",
              interrupted ? "Ctrl-C" : "a signal", step,
              trained ? "the state is saved" : "this run made no step, so there is nothing to save");
  return interrupted ? ExitCode::kInterrupted : ExitCode::kStoppedSaved;
}

}  // namespace hyperion::trainer
