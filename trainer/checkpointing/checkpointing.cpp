#include "trainer/checkpointing/checkpointing.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/counted.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "checkpoint/export_safetensors.h"
#include "checkpoint/misfit.h"
#include "parallel/phase.h"
#include "parallel/trace_range.h"

namespace hyperion {
namespace fs = std::filesystem;
namespace {

// Of an exchange between the threads that save. A rank that dies is noticed at once; one that is slow because
// its disk is slow must not end the job.
constexpr std::chrono::hours kSlowestSave{1};

SaverOptions saver_options(const JobConfig& config, const Runtime& runtime, const fs::path& folder,
                           std::map<std::string, std::string> facts) {
  const auto& options = config.checkpoint;
  SaverOptions saver;
  saver.folder = folder;
  saver.writers = options.writers;
  saver.async = options.async_mode;
  saver.keep_latest = options.keep_latest_k;
  saver.ranks_per_node = runtime.environment.local_world_size;
  saver.facts = std::move(facts);
  return saver;
}

std::string bandwidth(double bytes, double seconds) {
  return fmt::format("{:.2f} GiB in {:.2f} s ({:.2f} GiB/s)", bytes / (1 << 30), seconds,
                     bytes / (1 << 30) / std::max(seconds, 1e-9));
}

void log_durable(const SaveReport& report) {
  log_info("Checkpoint step-{} is durable: {} in {} at {}", report.step,
           bandwidth(static_cast<double>(report.total_bytes), report.write_seconds + report.commit_seconds),
           counted(report.files, "file"), report.path.string());
}

SaveContent model_only(const JobConfig& config, CheckpointKind kind) {
  return {.kind = kind,
          .wanted =
              [](const std::string& key) {
                const std::string component = component_of(key);
                return component == kModelComponent || component == kEmaComponent;
              },
          .model_dtype = config.checkpoint.export_dtype};
}

// One line for each pair of types that differ between file and memory: foreign weights come in any type.
void log_casts(const std::vector<LoadItem>& items, bool foreign) {
  std::map<std::pair<Dtype, Dtype>, int> casts;
  for (const LoadItem& item : items)
    if (item.record->dtype != item.tensor->dtype) ++casts[{item.record->dtype, item.tensor->dtype}];
  for (const auto& [types, count] : casts) {
    const std::string line =
        fmt::format("{} of the checkpoint: {}, converted to {}", counted(count, "tensor"),
                    torch_name(types.first), torch_name(types.second));
    foreign ? log_info("{}", line) : log_warning("{}", line);
  }
}

// The names of the chosen components' tensors; `required` objects that it holds are crossed out.
StoredNames stored_names(const ChosenCheckpoint& chosen, std::vector<std::string>& required) {
  StoredNames names;
  for (const auto& [name, key] : chosen.names)
    if (chosen.components.contains(component_of(name)) && chosen.checkpoint.index.tensors.contains(key))
      names.keys.emplace(name, key);
  std::erase_if(required, [&](const std::string& key) { return chosen.find(key) != nullptr; });
  return names;
}

}  // namespace

ComponentLoad plan_component_load(const ChosenCheckpoint& chosen,
                                  const std::vector<StateComponent*>& components, const JobConfig& config,
                                  const std::function<StoredNames()>& hugging_face_names) {
  ComponentLoad load;
  LoadOptions& options = load.options;
  options.allow_dtype_cast = config.checkpoint.allow_dtype_cast || chosen.candidate.hugging_face;
  options.full_verify = config.checkpoint.full_verify_on_load;
  options.verify_finite = config.checkpoint.verify_finite;
  options.remedy = "to convert, start with " + override_text("checkpoint.allow_dtype_cast", "true");
  std::vector<std::string> required;
  for (StateComponent* component : components) {
    if (!chosen.components.contains(component->name())) continue;
    std::ranges::move(component->tensors(), std::back_inserter(load.tensors));
    std::ranges::copy(component->required_objects(), std::back_inserter(required));
  }
  StoredNames names;
  if (chosen.candidate.hugging_face) {
    names = hugging_face_names();
  } else {
    names = stored_names(chosen, required);
    options.missing_objects = std::move(required);
  }
  load.items = plan_load(chosen.checkpoint, load.tensors, names, options);
  return load;
}

// The bytes have been verified before: what a component does not take of them is no damage.
void load_values(const ChosenCheckpoint& chosen, const std::vector<StateComponent*>& components) {
  try {
    for (StateComponent* component : components)
      if (chosen.components.contains(component->name()))
        component->load([&](const std::string& key) { return chosen.find(key); });
  } catch (const Error& error) {
    if (error.code() != ExitCode::kBadData) throw;
    throw Misfit(fmt::format("{}: {}", chosen.candidate.path.string(), error.what()));
  }
}

CheckpointAccess::CheckpointAccess(const JobConfig& config, const Runtime& runtime,
                                   const fs::path& install_root) {
  if (!config.checkpoint.enable || is_dry_run(config)) return;
  path_ = fs::path(config.job.dump_folder) / config.checkpoint.folder;
  std::shared_ptr<Communicator> group = runtime.groups->new_host_group("checkpoint");
  group->set_timeout(kSlowestSave);
  ranks_ = std::make_unique<GroupCoordinator>(std::move(group));
  std::string error;
  if (runtime.rank() == 0 && !config.checkpoint.load_only) {
    try {
      lock_.emplace(path_);
      const int removed = CheckpointFolder(path_).clean_leftovers(*lock_);
      if (removed > 0)
        log_info("Removed {} of an earlier run from {}", counted(removed, "unfinished checkpoint"),
                 path_.string());
    } catch (const Error& failure) {
      const bool usage = failure.code() == ExitCode::kUsage;  // another run holds the folder
      error = fmt::format("{} {}{}", static_cast<int>(usage ? ExitCode::kUsage : ExitCode::kPreCheckpoint),
                          usage ? "" : "[pre-checkpoint] rank 0: ", failure.what());
    }
  }
  error = ranks_->all_gather(error).front();
  if (!error.empty()) throw Error(static_cast<ExitCode>(std::stoi(error)), error.substr(error.find(' ') + 1));
  source_ = std::make_unique<ResumeSource>(config, CheckpointFolder(path_), install_root, *ranks_);
}

Checkpointing::Checkpointing(const JobConfig& config, const Runtime& runtime, CheckpointAccess& access,
                             std::vector<StateComponent*> components, MemoryMover& mover,
                             std::map<std::string, std::string> facts)
    : config_(config),
      runtime_(runtime),
      access_(access),
      components_(std::move(components)),
      mover_(mover),
      saver_(saver_options(config, runtime, access.folder(), std::move(facts)), components_, access.ranks(),
             mover) {
  saver_.on_durable = [this](const SaveReport& saved) {
    log_durable(saved);
    save_seconds_ = saved.write_seconds + saved.commit_seconds;
    if (progress_) progress_->saved(saved.step);
    report(saved.step, "checkpoint_durable",
           {{"kind", std::string(text_of(saved.kind))},
            {"bytes", static_cast<int64_t>(saved.total_bytes)},
            {"files", int64_t{saved.files}},
            {"write_seconds", saved.write_seconds},
            {"commit_seconds", saved.commit_seconds}});
  };
  saver_.on_staged = [this](int64_t step, double stall_seconds) {
    log_info("Checkpoint step-{} is staged; training waited {:.3f} s", step, stall_seconds);
    report(step, "checkpoint_staged", {{"stall_seconds", stall_seconds}});
  };
  if (config.checkpoint.async_mode == AsyncMode::kOverlapped && runtime.device.is_cpu())
    log_info("checkpoint.async_mode = \"async_with_pinned_mem\": on a CPU the same pool is used, unpinned");
}

void Checkpointing::report(int64_t step, const std::string& event, const EventFields& fields) const {
  if (on_event) on_event(step, event, fields);
}

// No other save is under way. One in the background reports itself when its data have been copied; for a
// synchronous one training waited until its end.
void Checkpointing::save(int64_t step, const SaveContent& content, bool now) {
  const bool background = !now && config_.checkpoint.async_mode != AsyncMode::kDisabled;
  const TraceRange range(background ? "checkpoint staging" : "checkpoint save");
  const int64_t saves = saver_.counters().saves;
  saver_.save(step, content, now);
  if (saver_.counters().saves > saves)
    report(step, "checkpoint_staged", {{"stall_seconds", saver_.counters().stall_seconds}});
}

void Checkpointing::load(const std::function<StoredNames(const ChosenCheckpoint&)>& hugging_face_names) {
  while (access_.chosen() != nullptr) {
    const ChosenCheckpoint& chosen = *access_.chosen();
    const PhaseGuard phase("load of a checkpoint");
    log_info("Loading the checkpoint from {}.", chosen.candidate.path.string());
    LoadFailure failure;
    try {
      ComponentLoad load =
          plan_component_load(chosen, components_, config_, [&] { return hugging_face_names(chosen); });
      log_casts(load.items, chosen.candidate.hugging_face);
      uint64_t total = 0;
      for (const LoadItem& item : load.items) total += item.tensor->local_bytes();
      Progress progress("loading", total, "B");
      load.options.on_progress = [&progress](uint64_t bytes) { progress.update(bytes); };
      const LoadReport report = load_tensors(chosen.checkpoint, load.items, mover_, load.options);
      load_values(chosen, components_);
      log_info("Finished loading the checkpoint: {} on this rank.",
               bandwidth(static_cast<double>(report.bytes), report.seconds));
    } catch (const Error& error) {
      if (error.code() == ExitCode::kCommunication) throw;
      failure = LoadFailure(error, runtime_.rank());
    }
    if (!access_.settle(failure)) continue;
    log_newer(chosen);
    return;
  }
}

// Newer checkpoints stay when a job goes on from an older one: because they are damaged, or because
// checkpoint.load_step says so. What the next start makes of them is said while it can still be changed.
void Checkpointing::log_newer(const ChosenCheckpoint& used) const {
  if (used.candidate.source != LoadSource::kOwn || config_.checkpoint.load_only || runtime_.rank() != 0)
    return;
  std::vector<std::string> newer;
  int64_t weights = 0;
  for (const FoundCheckpoint& found : CheckpointFolder(access_.folder()).scan()) {
    if (found.step <= used.candidate.step || !found.complete()) continue;
    if (holds_weights_alone(found)) {
      weights = std::max(weights, found.step);
    } else {
      newer.push_back(found.path.filename().string());
    }
  }
  const int64_t first = used.candidate.step + 1, again = std::min(weights, config_.training.steps);
  if (newer.empty() && again >= first)
    log_warning(
        "This run goes on from step-{}, the newest full checkpoint: {} again, because step-{} holds the "
        "weights alone; with {} the last save is full",
        used.candidate.step,
        again == first ? fmt::format("step {} is trained", first)
                       : fmt::format("steps {} to {} are trained", first, again),
        weights, override_text("checkpoint.last_save_model_only", "false"));
  if (!newer.empty())
    log_warning(
        "This run goes on from step-{}; newer checkpoints stay in {} until it reaches their steps ({}): a "
        "start before that tries them first; move them away, or name the step by checkpoint.load_step",
        used.candidate.step, access_.folder().string(), fmt::join(newer, ", "));
}

void Checkpointing::validate(int64_t step) {
  const auto& options = config_.checkpoint;
  if (options.load_only) return;
  const ChosenCheckpoint* chosen = access_.chosen();
  const bool resumed = chosen != nullptr && chosen->candidate.source == LoadSource::kOwn;
  require_free_names(resumed ? step + 1 : step, config_.training.steps);
  if (runtime_.rank() == 0) progress_.emplace(step);
  if (!options.validate_before_training) {
    log_info(
        "checkpoint.validate_before_training = false: the first checkpoint will be the first test of "
        "storage");
    return;
  }
  const PhaseGuard phase("pre-checkpoint");
  const bool probe = resumed && options.validate_on_resume == ResumePreflight::kProbe;
  const SaveReport report = saver_.validate(step, /*keep=*/!resumed, probe);
  if (!probe) save_seconds_ = report.write_seconds + report.commit_seconds;
  log_info(
      "[pre-checkpoint] {} written, read back and compared{}; read back in {:.2f} s; a periodic save will "
      "take about "
      "{:.2f} s",
      bandwidth(static_cast<double>(report.total_bytes), report.write_seconds + report.commit_seconds),
      resumed ? " under a temporary name" : fmt::format(" as {}", report.path.string()),
      report.read_back_seconds, report.write_seconds + report.commit_seconds);
}

void Checkpointing::before_update() {
  const TraceRange range("checkpoint staging wait");
  saver_.join_staging();
}

// A signal may have any step saved. Rank 0 looks for all.
void Checkpointing::require_free_names(int64_t first, int64_t last) const {
  std::string taken;
  if (runtime_.rank() == 0) {
    try {
      CheckpointFolder(access_.folder()).require_free_names(first, last);
    } catch (const Error& error) {
      taken = error.what();
    }
  }
  taken = access_.ranks().all_gather(taken).front();
  if (!taken.empty()) throw Error(ExitCode::kPreCheckpoint, taken);
}

bool Checkpointing::due(int64_t step) const {
  const auto& options = config_.checkpoint;
  return step % options.interval == 0 || (step == 1 && options.enable_first_step_checkpoint);
}

// A periodic save that failed ends the job, or is reported and forgotten; one that found NaN or infinite
// numbers always ends it.
template <typename Action>
void Checkpointing::tolerating_failure(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    const int64_t step = std::exchange(saved_, -1);
    if (error.code() != ExitCode::kSaveFailed ||
        config_.checkpoint.on_save_failure != OnSaveFailure::kContinue)
      throw;
    log_error("A checkpoint could not be saved, training goes on (checkpoint.on_save_failure): {}",
              error.what());
    report(step, "checkpoint_failed", {{"message", std::string(error.what())}});
  }
}

// The model alone, as transformers reads it.
void Checkpointing::save_for_hugging_face(int64_t step) {
  std::vector<ExportedTensor> tensors;
  for (const TensorState& tensor : saver_.tensors()) {
    if (component_of(tensor.key) != kModelComponent) continue;
    auto [name, row_map] = hugging_face_.tensor(tensor.key);
    tensors.push_back({&tensor, std::move(name), config_.checkpoint.export_dtype, std::move(row_map)});
  }
  const auto begin = std::chrono::steady_clock::now();
  export_safetensors(step, fmt::format("export-{}", step), tensors, hugging_face_.more_files,
                     hugging_face_.notes, saver_.folder(), access_.ranks(), mover_);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  report(step, "checkpoint_durable", {{"kind", std::string("hugging_face")}, {"write_seconds", seconds}});
  report(step, "checkpoint_staged", {{"stall_seconds", seconds}});
  log_info("The last checkpoint holds the model for Hugging Face, as {}: {}",
           torch_name(config_.checkpoint.export_dtype), saver_.folder().step_path(step).string());
}

void Checkpointing::save_last(int64_t step) {
  if (config_.checkpoint.last_save_in_hf) return save_for_hugging_face(step);
  if (!config_.checkpoint.last_save_model_only) return save(step, {}, /*now=*/true);
  log_info("The last checkpoint holds the model alone, as {} (checkpoint.last_save_model_only)",
           torch_name(config_.checkpoint.export_dtype));
  save(step, model_only(config_, CheckpointKind::kModel), /*now=*/true);
}

void Checkpointing::after_step(int64_t step, bool last, bool failed) {
  if (config_.checkpoint.load_only) return;
  // A failure that this rank alone knows of waits until the ranks have told each other.
  if (failed || (saver_.ended() && !saver_.failed())) finish();
  if (!last && !due(step)) return;
  const PhaseGuard phase(fmt::format("step {} checkpoint", step));
  finish();  // so that the failure of the save before it does not cost this one
  if (last) return save_last(step);
  saved_ = step;
  tolerating_failure([&] { save(step, {}, /*now=*/false); });
}

void Checkpointing::save_stopped(int64_t step) {
  const PhaseGuard phase(fmt::format("step {} checkpoint", step));
  finish();
  if (saved_ != step) save(step, {}, /*now=*/true);
}

void Checkpointing::finish() {
  const bool waits = saver_.writing();
  const auto begin = std::chrono::steady_clock::now();
  tolerating_failure([&] { saver_.finish(); });
  if (waits)
    log_info("Training waited {:.3f} s for a save to end",
             std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
}

void Checkpointing::save_seed() {
  require_free_names(0, 0);
  const bool model = config_.checkpoint.last_save_model_only;
  SaveContent content =
      model ? model_only(config_, CheckpointKind::kSeed) : SaveContent{.kind = CheckpointKind::kSeed};
  save(0, content, /*now=*/true);
}

}  // namespace hyperion
