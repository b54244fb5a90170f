#include "trainer/checkpointing/checkpointer.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/clock.h"
#include "base/collective.h"
#include "base/counted.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/shell.h"
#include "checkpoint/content_reader.h"
#include "checkpoint/export_safetensors.h"
#include "parallel/comm/trace_range.h"
#include "parallel/job/phase.h"
#include "parallel/placement.h"
#include "trainer/checkpointing/hugging_face_weights.h"
#include "trainer/checkpointing/job_state.h"
#include "trainer/checkpointing/stored_weights.h"
#include "trainer/config/validate.h"
#include "trainer/config/writers_choice.h"

namespace hyperion::checkpointing {
namespace fs = std::filesystem;
using checkpoint::SaveTiming;
namespace {

// Timeout of an exchange while a checkpoint is saved; before that comm.init_timeout_seconds applies. A dead
// rank is noticed at once, and a rank with a slow disk must not end the job.
constexpr std::chrono::hours kSlowestSave{1};

std::string describe_transfer(double bytes, double seconds) {
  return fmt::format("{:.2f} GiB in {:.2f} s ({:.2f} GiB/s)", bytes / (1 << 30), seconds,
                     bytes / (1 << 30) / std::max(seconds, 1e-9));
}

checkpoint::SaveContent model_only(const config::JobConfig& config, checkpoint::CheckpointKind kind) {
  return {.kind = kind,
          .wanted =
              [](const std::string& key) {
                const std::string component = checkpoint::component_of(key);
                return component == checkpoint::kModelComponent || component == checkpoint::kEmaComponent;
              },
          .model_dtype = config.checkpoint.export_dtype};
}

// Logs one line for each pair of dtypes that differ between file and memory: foreign weights come in any
// dtype.
void log_casts(const std::vector<checkpoint::LoadItem>& items, bool foreign) {
  std::map<std::pair<checkpoint::Dtype, checkpoint::Dtype>, int> casts;
  for (const checkpoint::LoadItem& item : items)
    if (item.record->dtype != item.tensor.dtype) ++casts[{item.record->dtype, item.tensor.dtype}];
  for (const auto& [types, count] : casts) {
    const std::string line =
        fmt::format("{} of the checkpoint: {}, converted to {}", counted(count, "tensor"),
                    checkpoint::torch_name(types.first), checkpoint::torch_name(types.second));
    if (foreign)
      log_info("{}", line);
    else
      log_warning("{}", line);
  }
}

// Adds the explanation of tied and untied heads to the message.
checkpoint::LoadOptions job_load_options(const ChosenCheckpoint& chosen, const config::JobConfig& config) {
  const bool hugging_face = chosen.hugging_face;
  const std::string start = "start with " + config::override_text("model.args.tied", "false");
  checkpoint::LoadOptions options;
  options.untie = untie_remedy(chosen.path, hugging_face, start);
  if (hugging_face && config.model.flavor != models::kFlavorFromHf &&
      name_exists(chosen.path / "config.json"))
    options.untie += " and " + start;
  options.advice = [hugging_face](const checkpoint::NameDifferences& differences) {
    const std::string head = explain_head(differences, hugging_face);
    return head + (head.empty() ? "" : " ") + std::string(checkpoint::kRenameAdvice);
  };
  return options;
}

}  // namespace

std::vector<checkpoint::LoadItem> plan_component_load(
    const ChosenCheckpoint& chosen, const std::vector<checkpoint::StateComponent*>& components,
    const config::JobConfig& config, const models::ModelArgs& model) {
  checkpoint::LoadOptions options = job_load_options(chosen, config);
  options.allow_dtype_cast = config.checkpoint.allow_dtype_cast || chosen.hugging_face;
  options.remedy = "to convert, start with " + config::override_text("checkpoint.allow_dtype_cast", "true");
  std::vector<checkpoint::TensorState> tensors;
  for (checkpoint::StateComponent* component : components) {
    if (!chosen.components.contains(component->name())) continue;
    std::ranges::move(component->tensors(), std::back_inserter(tensors));
    if (chosen.hugging_face) continue;
    for (std::string& key : component->required_objects())
      if (chosen.find_object(key) == nullptr) options.missing_objects.push_back(std::move(key));
  }
  checkpoint::StoredNames names;
  if (chosen.hugging_face) {
    names = hugging_face_names(model, chosen.names, chosen.checkpoint);
    log_left_out(names, chosen.path);
  } else {
    for (const auto& [name, key] : chosen.names)
      if (chosen.components.contains(checkpoint::component_of(name)) &&
          chosen.checkpoint.index.tensors.contains(key))
        names.keys.emplace(name, key);
  }
  return checkpoint::plan_load(chosen.checkpoint, tensors, names, options);
}

void require_equal_aliases(const ChosenCheckpoint& chosen, const std::vector<checkpoint::LoadItem>& items,
                           const config::JobConfig& config) {
  for (const checkpoint::LoadItem& item : items)
    if (item.tensor.placement.is_local)
      checkpoint::require_equal_aliases(chosen.checkpoint, item, item.tensor.box(),
                                        job_load_options(chosen, config));
}

// The bytes are already verified, so a value that a component rejects is not damage.
void load_values(const ChosenCheckpoint& chosen, const std::vector<checkpoint::StateComponent*>& components) {
  try {
    for (checkpoint::StateComponent* component : components)
      if (chosen.components.contains(component->name()))
        component->load([&](const std::string& key) { return chosen.find_object(key); });
  } catch (const Error& error) {
    if (error.code() != ExitCode::kBadData) throw;
    throw IncompatibleCheckpoint(fmt::format("{}: {}", chosen.path.string(), error.what()));
  }
}

Checkpointer::Checkpointer(const config::JobConfig& configured, const trainer::Runtime& runtime,
                           const fs::path& install_root)
    : config_(&configured), runtime_(runtime) {
  if (!options().enable || config::is_dry_run(configured)) return;
  path_ = fs::path(configured.job.dump_folder) / options().folder;
  ranks_ = runtime.groups->new_host_group("checkpoint");
  if (!options().load_only) {
    ranks_->set_timeout(kSlowestSave);  // what a job that was killed has left is removed by rank 0 alone
    from_rank_0(*ranks_, [&] {
      try {
        lock_.emplace(path_);
        const int removed = checkpoint::CheckpointFolder(path_).clean_leftovers(*lock_);
        if (removed > 0)
          log_info("Removed {} of an earlier run from {}", counted(removed, "unfinished checkpoint"),
                   path_.string());
      } catch (const Error& error) {
        if (error.code() == ExitCode::kUsage) throw;  // another run holds the folder
        throw_pre_checkpoint("[pre-checkpoint] rank 0: {}", error.what());
      }
    });
    ranks_->set_timeout(std::chrono::seconds(configured.comm.init_timeout_seconds));
  }
  start_ = choose_start(configured, checkpoint::CheckpointFolder(path_), install_root, *ranks_);
}

void Checkpointer::attach(CheckpointedState state) {
  if (!enabled()) return;
  state_.emplace(std::move(state));
  config_ = &state_->config;
  const config::ChosenWriters chosen = config::choose_writers(
      options().writers, runtime_.world_size(), runtime_.mesh->degree(parallel::MeshDim::kDpReplicate));
  if (!options().load_only && runtime_.world_size() > 1)
    log_info("Checkpoints are written by {}", chosen.text);
  saver_.emplace(checkpoint::SaverOptions{.folder = path_,
                                          .writers = chosen.writers,
                                          .async = options().async_mode,
                                          .keep_latest = options().keep_latest_k,
                                          .ranks_per_node = runtime_.groups->ranks_per_node(),
                                          .facts = state_->facts,
                                          .held_part =
                                              [&mesh = *runtime_.mesh](const auto& kind, int rank) {
                                                return checkpoint::held_part(parallel::placement_of(
                                                    kind.cuts, kind.pp_rank, mesh, rank, kind.domain));
                                              }},
                 state_->components, *ranks_, state_->mover);
  saver_->on_durable = [this](const checkpoint::SaveReport& saved) {
    save_seconds_ = saved.write_seconds + saved.commit_seconds;
    log_info("Checkpoint step-{} is durable: {} in {} at {}", saved.step,
             describe_transfer(static_cast<double>(saved.total_bytes), save_seconds_),
             counted(saved.files, "file"), saved.path.string());
    if (progress_) progress_->saved(saved.step);
    on_event(saved.step, "checkpoint_durable",
             {{"kind", std::string(text_of(saved.kind))},
              {"bytes", static_cast<int64_t>(saved.total_bytes)},
              {"files", int64_t{saved.files}},
              {"write_seconds", saved.write_seconds},
              {"commit_seconds", saved.commit_seconds}});
  };
  saver_->on_staged = [this](int64_t step, double stall_seconds) {
    log_info("Checkpoint step-{} is staged; training waited {:.3f} s", step, stall_seconds);
    on_event(step, "checkpoint_staged", {{"stall_seconds", stall_seconds}});
  };
  if (options().async_mode == checkpoint::AsyncMode::kOverlapped && runtime_.device.is_cpu())
    log_info("checkpoint.async_mode = \"async_with_pinned_mem\": on a CPU the same pool is used, unpinned");
}

void Checkpointer::load_from(const ChosenCheckpoint& chosen) {
  const std::vector<checkpoint::LoadItem> items =
      plan_component_load(chosen, state_->components, *config_, state_->model);
  log_casts(items, chosen.hugging_face);
  if (chosen.hugging_face && options().initial_load_in_hf_quantized)
    log_info("Tensors that are fp8 with block scales are read as the float32 numbers that they stand for");
  uint64_t total = 0;
  for (const checkpoint::LoadItem& item : items) total += item.tensor.local_bytes();
  Progress progress("loading", total, "B");
  checkpoint::LoadOptions load = job_load_options(chosen, *config_);
  load.full_verify = options().full_verify_on_load;
  load.verify_finite = options().verify_finite;
  load.on_progress = [&progress](uint64_t bytes) { progress.update(bytes); };
  const checkpoint::LoadReport report =
      checkpoint::load_tensors(chosen.checkpoint, items, state_->mover, load);
  load_values(chosen, state_->components);
  log_info("Finished loading the checkpoint: {} on this rank.",
           describe_transfer(static_cast<double>(report.bytes), report.seconds));
}

void Checkpointer::load() {
  while (start_.checkpoint) {
    const parallel::PhaseGuard phase("load of a checkpoint");
    log_info("Loading the checkpoint from {}.", start_.checkpoint->path.string());
    try {
      return read_collectively(*ranks_, [&] { load_from(*start_.checkpoint); });
    } catch (const Error& error) {
      if (!fall_back_to_older(*config_, start_, error, *ranks_)) throw;
    }
  }
}

// Logs before step 1 the size of the index, which a reader of a checkpoint holds in memory.
void Checkpointer::announce_index_size() {
  constexpr uint64_t kLargeIndex = uint64_t{256} << 20;
  uint64_t bytes = 0;
  try {
    bytes = saver_->index_bytes();
  } catch (const Error& error) {
    if (error.code() != ExitCode::kSaveFailed) throw;
    throw_pre_checkpoint("[pre-checkpoint] nothing was trained: {}", error.what());
  }
  log_info("The index of a checkpoint (.metadata) takes {}", format_bytes(bytes));
  if (bytes > kLargeIndex && runtime_.rank() == 0)
    log_warning(
        "the index of a checkpoint (.metadata) takes {} MiB, because every tensor is cut into {} shards, and "
        "every rank decodes it when the job resumes; with parallelism.data_parallel_replicate_degree above 1 "
        "(HSDP) it is smaller by that factor",
        bytes >> 20, runtime_.mesh->degree(parallel::MeshDim::kFsdp));
}

void Checkpointer::preflight(int64_t step) {
  if (!saves()) return;
  const bool resumed = start_.checkpoint && start_.checkpoint->source == LoadSource::kOwn;
  const checkpoint::CheckpointFolder folder(path_);
  const int64_t last = config_->training.steps;
  // Any step may be saved, because a signal may come in any.
  from_rank_0(*ranks_, [&] { folder.require_free_names(resumed ? step + 1 : step, last); });
  if (runtime_.rank() == 0) progress_.emplace(step);
  const std::string warning =
      from_rank_0(*ranks_, [&] { return explain_newer_checkpoints(start_, folder, step, last); });
  if (runtime_.rank() == 0 && !warning.empty()) log_warning("{}", warning);
  announce_index_size();
  prepare_background_saves(step);
  ranks_->set_timeout(kSlowestSave);
  if (options().validate_before_training)
    save_before_training(step, resumed);
  else
    log_info(
        "checkpoint.validate_before_training = false: the first checkpoint will be the first test of "
        "storage");
}

// Does nothing if the only save to come is the last, which is synchronous.
void Checkpointer::prepare_background_saves(int64_t step) {
  const int64_t next = (step / options().interval + 1) * options().interval;
  const bool first = step == 0 && options().enable_first_step_checkpoint;
  if (std::min(next, first ? 1 : next) >= config_->training.steps) return;
  saver_->prepare_pool();
  if (const uint64_t pool = saver_->pool_bytes(); pool > 0)
    log_info("Background saves copy the state to a pool of {} in {}host memory", format_bytes(pool),
             state_->mover.allocates_pinned() ? "pinned " : "");
}

void Checkpointer::save_before_training(int64_t step, bool resumed) {
  const parallel::PhaseGuard phase("pre-checkpoint");
  const bool probe = resumed && options().validate_on_resume == config::ResumePreflight::kProbe;
  const checkpoint::SaveReport report = saver_->preflight(step, {.keep = !resumed, .probe = probe});
  if (!probe) save_seconds_ = report.write_seconds + report.commit_seconds;
  log_info(
      "[pre-checkpoint] {} written, read back and compared{}; read back in {:.2f} s; a periodic save will "
      "take about {:.2f} s",
      describe_transfer(static_cast<double>(report.total_bytes),
                        report.write_seconds + report.commit_seconds),
      resumed ? " under a temporary name" : fmt::format(" as {}", report.path.string()),
      report.read_back_seconds, report.write_seconds + report.commit_seconds);
}

void Checkpointer::wait() {
  if (!saver_) return;
  const parallel::TraceRange range("checkpoint staging wait");
  saver_->join_staging();
}

bool Checkpointer::due(int64_t step) const {
  if (!saves()) return false;
  return step % options().interval == 0 || (step == 1 && options().enable_first_step_checkpoint);
}

// A failed periodic save ends the job or is reported, as configured. A save that found NaN or infinite
// numbers always ends it.
void Checkpointer::tolerate_failure(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    const int64_t step = std::exchange(saved_, -1);
    if (error.code() != ExitCode::kSaveFailed ||
        options().on_save_failure != config::OnSaveFailure::kContinue)
      throw;
    log_error("A checkpoint could not be saved, training continues (checkpoint.on_save_failure): {}",
              error.what());
    on_event(step, "checkpoint_failed", {{"message", std::string(error.what())}});
  }
}

// No other save may be in flight. A background save reports when its data are copied; training waits for a
// synchronous save.
void Checkpointer::write(int64_t step, const checkpoint::SaveContent& content, SaveTiming timing) {
  const bool background =
      timing == SaveTiming::kAsConfigured && options().async_mode != checkpoint::AsyncMode::kDisabled;
  const parallel::TraceRange range(background ? "checkpoint staging" : "checkpoint save");
  const bool written = saver_->save(step, content, timing);
  if (written) on_event(step, "checkpoint_staged", {{"stall_seconds", saver_->stall_seconds()}});
}

// Saves the model alone, in the format that transformers reads.
void Checkpointer::write_for_hugging_face(int64_t step) {
  std::vector<checkpoint::ExportedTensor> tensors;
  for (const checkpoint::TensorState& tensor : saver_->tensors()) {
    if (checkpoint::component_of(tensor.key) != checkpoint::kModelComponent) continue;
    std::ranges::move(hugging_face_tensors(state_->model, tensor, options().export_dtype),
                      std::back_inserter(tensors));
  }
  const auto begin = std::chrono::steady_clock::now();
  checkpoint::export_safetensors(step, fmt::format("export-{}", step), tensors, state_->exported.files,
                                 state_->export_notes, saver_->folder(), *ranks_, state_->mover);
  const double seconds = seconds_since(begin);
  on_event(step, "checkpoint_durable", {{"kind", std::string("hugging_face")}, {"write_seconds", seconds}});
  on_event(step, "checkpoint_staged", {{"stall_seconds", seconds}});
  log_info("The last checkpoint holds the model for Hugging Face, as {}: {}",
           checkpoint::torch_name(options().export_dtype), saver_->folder().step_path(step).string());
  for (const std::string& remark : state_->exported.remarks) log_info("{}", remark);
}

void Checkpointer::write_last(int64_t step) {
  if (options().last_save_in_hf) return write_for_hugging_face(step);
  if (!options().last_save_model_only) return write(step, {}, SaveTiming::kSynchronous);
  log_info("The last checkpoint holds the model alone, as {} (checkpoint.last_save_model_only)",
           checkpoint::torch_name(options().export_dtype));
  write(step, model_only(*config_, checkpoint::CheckpointKind::kModel), SaveTiming::kSynchronous);
}

void Checkpointer::save(int64_t step, const StepEnd& end) {
  if (!saves()) return;
  // A failure of this rank alone is thrown after all ranks know of it.
  if (end.save_failed || (saver_->save_ended() && !saver_->save_failed())) finish();
  if (!end.last && !due(step)) return;
  const parallel::PhaseGuard phase(fmt::format("step {} checkpoint", step));
  finish();  // so that the failure of the save before it does not cost this one
  if (end.last) return write_last(step);
  saved_ = step;
  tolerate_failure([&] { write(step, {}, SaveTiming::kAsConfigured); });
}

void Checkpointer::save_stopped(int64_t step) {
  const parallel::PhaseGuard phase(fmt::format("step {} checkpoint", step));
  finish();
  if (saved_ != step) write(step, {}, SaveTiming::kSynchronous);
}

void Checkpointer::finish() {
  if (!saver_) return;
  const bool waits = saver_->save_in_flight();
  const auto begin = std::chrono::steady_clock::now();
  tolerate_failure([&] { saver_->finish(); });
  if (waits) log_info("Training waited {:.3f} s for a save to end", seconds_since(begin));
}

std::string Checkpointer::last_save_remedy(const fs::path& newest, int64_t step) const {
  const bool safetensors = options().last_save_in_hf, weights_alone = start_.finished.has_value();
  if (options().load_only || !options().last_save_model_only || !name_exists(newest / ".metadata") ||
      (weights_alone && !safetensors))
    return "";
  const fs::path out =
      fs::path(config_->job.dump_folder) / fmt::format("step-{}-{}", step, safetensors ? "hf" : "model");
  return fmt::format(
      "; to make the last save that {} asks for, run: {}",
      safetensors ? "checkpoint.last_save_in_hf" : "checkpoint.last_save_model_only",
      shell_command({"hyperion", "ckpt", "convert", newest.string(), out.string(),
                     safetensors ? "--to=safetensors" : "--to=dcp",
                     fmt::format("--dtype={}", checkpoint::torch_name(options().export_dtype))}));
}

void Checkpointer::save_seed() {
  from_rank_0(*ranks_, [&] { checkpoint::CheckpointFolder(path_).require_free_names(0, 0); });
  constexpr auto kSeed = checkpoint::CheckpointKind::kSeed;
  ranks_->set_timeout(kSlowestSave);
  write(0,
        options().last_save_model_only ? model_only(*config_, kSeed) : checkpoint::SaveContent{.kind = kSeed},
        SaveTiming::kSynchronous);
}

}  // namespace hyperion::checkpointing
