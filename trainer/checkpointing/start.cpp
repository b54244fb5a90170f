#include "trainer/checkpointing/start.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/collective.h"
#include "base/files.h"
#include "base/log.h"
#include "checkpoint/storage/index_files.h"
#include "trainer/config/input_path.h"
#include "trainer/config/validate.h"

namespace hyperion::checkpointing {
namespace fs = std::filesystem;
namespace {

// Returns N of a folder step-N.
int64_t step_of_folder(const fs::path& folder) {
  return checkpoint::step_of_name(folder.filename().string()).value();
}

bool holds_optimizer(const checkpoint::OpenCheckpoint& checkpoint) {
  return std::ranges::any_of(checkpoint.index.tensors, [](const auto& tensor) {
    return checkpoint::component_of(tensor.first) == checkpoint::kOptimizerComponent;
  });
}

// Returns whether one of the checkpoint's names is a value of the component.
bool holds(const std::map<std::string, std::string>& names, std::string_view component) {
  return std::ranges::any_of(
      names, [&](const auto& name) { return checkpoint::component_of(name.first) == component; });
}

// Returns whether the configuration asks explicitly for a checkpoint of weights alone.
bool wants_weights_only(const config::JobConfig& config) {
  const auto& wanted = config.checkpoint.components;
  return !wanted.empty() && std::ranges::all_of(wanted, [](const std::string& c) {
    return c == checkpoint::kModelComponent || c == checkpoint::kEmaComponent;
  });
}

// Returns whether no run can resume from the checkpoint because it holds only weights: a last save of
// weights, or a Hugging Face export. Reads the index if another program wrote the checkpoint.
bool holds_weights_alone(const checkpoint::StepFolder& found) {
  if (found.kind == checkpoint::CheckpointKind::kModel || checkpoint::find_index_files(found.path).empty())
    return true;
  if (found.manifest || found.step == 0) return false;  // a step-0 of torchtitan is a seed
  try {
    return !holds_optimizer(checkpoint::open_checkpoint(found.path));
  } catch (const Error&) {
    return false;  // damage is named when it is loaded
  }
}

// The options that start a job from `path`.
std::string initial_load(const fs::path& path, bool hugging_face) {
  return config::override_text("checkpoint.initial_load_path", path.string()) + " " +
         config::override_text("checkpoint.initial_load_in_hf", hugging_face ? "true" : "false");
}

// Checks that `path`, the start of the job, has the configured format.
void require_format(const fs::path& path, bool hugging_face) {
  const std::vector<std::string> index = checkpoint::find_index_files(path);
  if (!index.empty() && hugging_face)
    throw_data(
        "checkpoint.initial_load_in_hf = true expects safetensors, but {} is a checkpoint in DCP format (it "
        "holds {}): start with {}",
        path.string(), index.front(), initial_load(path, /*hugging_face=*/false));
  if (!index.empty()) return;
  bool safetensors = path.extension() == ".safetensors";
  int64_t last_step = -1;  // of the checkpoints in it
  if (is_folder(path))
    for (const fs::path& entry : list_folder(path)) {
      safetensors |= entry.extension() == ".safetensors";
      last_step = std::max(last_step, checkpoint::step_of_name(entry.filename().string()).value_or(-1));
    }
  if (hugging_face == safetensors && safetensors) return;
  if (safetensors)
    throw_data(
        "checkpoint.initial_load_path: {} holds safetensors (Hugging Face's format) and no checkpoint in DCP "
        "format: start with {}",
        path.string(), initial_load(path, /*hugging_face=*/true));
  throw_data(
      "checkpoint.initial_load_path: {} holds no {}: name the folder of one {}{}", path.string(),
      hugging_face ? "safetensors" : ".metadata",
      hugging_face ? "model of Hugging Face (config.json, *.safetensors)" : "checkpoint (.../step-100)",
      last_step < 0 ? "" : fmt::format("; step-{} is in it", last_step));
}

// The checkpoints that rank 0 has found.
struct Candidates {
  bool own = false;                       // checkpoints of the job itself
  std::vector<std::string> untried{};     // that it could load, newest first
  std::optional<std::string> finished{};  // the one that says that nothing is left to do
  static auto members(auto& self) { return std::tie(self.own, self.untried, self.finished); }
};

// A checkpoint whose hyperion.json is lost looks like one of another program: its bytes, its model and its
// tokenizer are not compared.
void warn_of_lost_manifest(const std::vector<checkpoint::StepFolder>& entries, const fs::path& chosen) {
  const auto it = std::ranges::find(entries, chosen, &checkpoint::StepFolder::path);
  const auto other =
      std::ranges::find_if(entries, [](const auto& entry) { return entry.manifest.has_value(); });
  if (it == entries.end() || it->manifest || it->unreadable() || other == entries.end()) return;
  log_warning(
      "Checkpoint {} has no hyperion.json, which {} beside it has: whether its files are those that were "
      "saved cannot be compared",
      chosen.string(), other->path.filename().string());
}

// Returns nullopt if the job has no usable checkpoint of its own.
std::optional<Candidates> own_checkpoints(const config::JobConfig& config,
                                          const checkpoint::CheckpointFolder& folder) {
  const auto& options = config.checkpoint;
  const int64_t wanted = options.load_step;
  Candidates found{.own = true};
  std::vector<std::string> skipped;
  std::vector<checkpoint::StepFolder> entries = folder.scan();
  std::ranges::sort(entries, std::greater(), &checkpoint::StepFolder::step);
  for (const checkpoint::StepFolder& entry : entries) {
    if (wanted != -1 && entry.step != wanted) continue;
    const bool newest = found.untried.empty() && !found.finished;
    const bool dcp = entry.complete() && !checkpoint::find_index_files(entry.path).empty();
    std::string problem = entry.unreadable() ? "" : entry.why_not;  // the job ends when it opens it
    if (entry.complete() && holds_weights_alone(entry) && !(dcp && wants_weights_only(config))) {
      if (newest && wanted == -1 && entry.step >= config.training.steps) {
        found.finished = entry.path.string();
        continue;
      }
      problem = fmt::format("it holds weights alone; a new run, in another folder, starts from them with {}",
                            initial_load(entry.path, /*hugging_face=*/!dcp));
    }
    if (problem.empty()) {
      found.untried.push_back(entry.path.string());
      continue;
    }
    if (newest && entry.damaged() && options.on_corrupt == config::OnCorrupt::kError)
      throw_data("Checkpoint {} is damaged: {}; to resume from the one before it, start with {}",
                 entry.path.string(), problem, config::override_text("checkpoint.on_corrupt", "previous"));
    if (newest) log_warning("Checkpoint {} is not resumed from: {}", entry.path.string(), problem);
    skipped.push_back(fmt::format("{}: {}", entry.path.string(), problem));
  }
  if (!found.untried.empty()) warn_of_lost_manifest(entries, found.untried.front());
  if (!found.untried.empty() || found.finished) return found;
  if (!skipped.empty())
    throw_data("no checkpoint in {} can be resumed from: {}", folder.path().string(),
               fmt::join(skipped, "; "));
  if (wanted != -1)
    throw_data("checkpoint.load_step = {}: there is no step-{} in {}", wanted, wanted,
               folder.path().string());
  return std::nullopt;
}

Candidates find_checkpoints(const config::JobConfig& config, const checkpoint::CheckpointFolder& folder,
                            const fs::path& install_root) {
  const auto& options = config.checkpoint;
  const bool initial = options.initial_load_path || options.initial_load_in_hf;
  // A seed checkpoint holds the initial weights, whatever has been trained since.
  if (!options.create_seed_checkpoint && (path_exists(folder.path()) || options.load_step != -1)) {
    if (std::optional<Candidates> own = own_checkpoints(config, folder)) {
      if (initial)
        log_info("Checkpoints of this job are in {}: the initial load is not used", folder.path().string());
      return *own;
    }
  }
  if (!initial) return {};
  const fs::path path =
      config::resolve_input(options.initial_load_path.value_or(config.model.hf_assets_path), install_root);
  if (!path_exists(path))
    throw_data("checkpoint.initial_load_path: there is no {} to load from", path.string());
  require_format(path, options.initial_load_in_hf);
  return {.untried = {path.string()}};
}

// Handles averages that only one of checkpoint and job has.
void choose_ema_source(const config::JobConfig& config, ChosenCheckpoint& chosen) {
  const bool there = holds(chosen.names, checkpoint::kEmaComponent);
  if (!config.ema.enable) {
    if (there)
      log_warning(
          "{} holds averaged weights (ema), which this job does not use: they are not read and will "
          "not be in its own checkpoints",
          chosen.path.string());
    return;
  }
  if (there || !chosen.components.contains(checkpoint::kEmaComponent)) return;
  if (config.ema.on_missing == config::OnMissingEma::kError)
    throw_incompatible(
        "{}: ema.enable = true, but the checkpoint holds no averaged weights; to start them from "
        "the weights, start with {}",
        chosen.path.string(), config::override_text("ema.on_missing", "init_from_model"));
  log_info("The averaged weights (ema) start from the weights of {}", chosen.path.string());
  chosen.components.erase(std::string(checkpoint::kEmaComponent));
}

ChosenCheckpoint open_for_job(const config::JobConfig& config, const fs::path& path, LoadSource source,
                              const std::optional<checkpoint::IndexFiles>& files) {
  ChosenCheckpoint chosen;
  chosen.path = path;
  chosen.source = source;
  chosen.hugging_face = source == LoadSource::kInitial && config.checkpoint.initial_load_in_hf;
  chosen.checkpoint =
      files ? checkpoint::decode_index_files(path, *files) : checkpoint::open_checkpoint(path);
  const checkpoint::CheckpointIndex& index = chosen.checkpoint.index;
  std::vector<std::string> keys;
  for (const auto& [key, record] : index.tensors) keys.push_back(key);
  for (const auto& [key, record] : index.objects) keys.push_back(key);
  checkpoint::RenameTable table(config.checkpoint.rename.begin(), config.checkpoint.rename.end());
  chosen.names = checkpoint::NameMap(table).apply(keys);
  if (chosen.hugging_face) {
    chosen.components.emplace(checkpoint::kModelComponent);
    return chosen;
  }
  const bool seed =
      chosen.checkpoint.manifest && chosen.checkpoint.manifest->kind == checkpoint::CheckpointKind::kSeed;
  const bool weights_only = seed || !holds_optimizer(chosen.checkpoint);
  ComponentChoice choice = choose_components(config, source, weights_only);
  chosen.components = std::move(choice.loaded);
  std::ranges::copy_if(choice.left_out, std::back_inserter(chosen.left_out),
                       [&](const std::string& part) { return holds(chosen.names, part); });
  choose_ema_source(config, chosen);
  std::map<std::string, std::string> wanted;  // objects: key -> name
  for (const auto& [name, key] : chosen.names)
    if (index.objects.contains(key) &&
        (chosen.components.contains(checkpoint::component_of(name)) || name == checkpoint::kLoaderRanksKey ||
         name == checkpoint::kTrajectoryKey))  // compared on every load
      wanted.emplace(key, name);
  for (auto& [key, object] : checkpoint::load_objects(
           chosen.checkpoint, [&](const std::string& key) { return wanted.contains(key); }))
    chosen.objects.emplace(wanted.at(key), std::move(object));
  return chosen;
}

bool may_fall_back(const config::JobConfig& config, const StartingPoint& start, const fs::path& failed,
                   const Error& error) {
  if (!is_damage(error) || start.untried.empty() ||
      config.checkpoint.on_corrupt != config::OnCorrupt::kPrevious || config.checkpoint.load_step != -1)
    return false;
  log_warning("Checkpoint {} cannot be used, trying the one before it: {}", failed.string(), error.what());
  return true;
}

// A missing file on one rank is not damage and causes no fallback: the rank would not see an older
// checkpoint's files either. Only the first and the last file of a split index are compared, because each
// rank asks the file system for them.
void require_same_folder(const fs::path& path, const checkpoint::IndexFiles& files, int rank) {
  for (const checkpoint::IndexFile* file : {&files.index.front(), &files.index.back()}) {
    const auto& [name, content] = *file;
    std::error_code error;
    const uint64_t bytes = fs::file_size(path / name, error);
    if (error || bytes != content.size())
      throw_incompatible(
          "rank {}: {} {}, but rank 0 reads {} bytes from it: checkpoint.folder must be on a file system "
          "that all nodes share",
          rank, (path / name).string(),
          error ? fmt::format("cannot be read here ({})", error.message())
                : fmt::format("has {} bytes here", bytes),
          content.size());
  }
}

void open_newest(const config::JobConfig& config, LoadSource source, StartingPoint& start,
                 Coordinator& ranks) {
  while (!start.checkpoint && !start.untried.empty()) {
    const fs::path path = start.untried.front();
    start.untried.erase(start.untried.begin());
    try {
      // Rank 0 reads what describes the checkpoint, and sends it to the others.
      std::optional<checkpoint::IndexFiles> files;
      read_collectively(ranks, [&] {
        if (ranks.rank() == 0) files = checkpoint::read_index_files(path);
      });
      files = checkpoint::broadcast_index_files(std::move(files), ranks);
      read_collectively(ranks, [&] {
        if (files) require_same_folder(path, *files, ranks.rank());
        start.checkpoint = open_for_job(config, path, source, files);
      });
    } catch (const Error& error) {
      start.checkpoint.reset();
      if (!may_fall_back(config, start, path, error)) throw;
    }
  }
}

}  // namespace

void read_collectively(Coordinator& ranks, const std::function<void()>& action) {
  collectively(ranks, [&] {
    try {
      action();
    } catch (const PermissionDenied& error) {
      throw PermissionDenied(
          error.code(),
          fmt::format("{}; give the job's user the permission to read it, or move it away", error.what()));
    }
  });
}

StartingPoint choose_start(const config::JobConfig& config, const checkpoint::CheckpointFolder& folder,
                           const fs::path& install_root, Coordinator& ranks) {
  const Candidates found = from_rank_0(ranks, [&] { return find_checkpoints(config, folder, install_root); });
  StartingPoint start;
  start.untried.assign(found.untried.begin(), found.untried.end());
  if (found.finished) {
    start.finished = {*found.finished, step_of_folder(*found.finished)};
    if (!start.untried.empty()) start.finished->resumable_step = step_of_folder(start.untried.front());
    return start;
  }
  open_newest(config, found.own ? LoadSource::kOwn : LoadSource::kInitial, start, ranks);
  return start;
}

bool fall_back_to_older(const config::JobConfig& config, StartingPoint& start, const Error& error,
                        Coordinator& ranks) {
  if (!may_fall_back(config, start, start.checkpoint->path, error)) return false;
  start.checkpoint.reset();
  open_newest(config, LoadSource::kOwn, start, ranks);
  return true;
}

std::string explain_newer_checkpoints(const StartingPoint& start, const checkpoint::CheckpointFolder& folder,
                                      int64_t step, int64_t last) {
  if (!start.checkpoint || start.checkpoint->source != LoadSource::kOwn) return "";
  std::vector<std::string> newer;
  int64_t newest = step, weights = 0;
  for (const checkpoint::StepFolder& found : folder.scan()) {
    if (found.step <= step || !(found.complete() || found.damaged() || found.unreadable())) continue;
    const bool alone = found.complete() && holds_weights_alone(found);
    newer.push_back(found.path.filename().string() + (alone              ? " (weights alone)"
                                                      : found.complete() ? ""
                                                                         : " (damaged)"));
    newest = std::max(newest, found.step);
    if (alone) weights = std::max(weights, found.step);
  }
  if (newer.empty()) return "";
  const int64_t used = step_of_folder(start.checkpoint->path), end = std::min(newest, last);
  const std::string again = end <= step ? ""
                            : end == step + 1
                                ? fmt::format("step {} is trained again", end)
                                : fmt::format("steps {} to {} are trained again", step + 1, end);
  if (newer.size() == 1 && weights > 0 && used == step) {
    if (again.empty()) return "";
    return fmt::format(
        "This run resumes from step-{}, the newest full checkpoint: {}, because step-{} holds the weights "
        "alone; with {} the last save is full",
        used, again, weights, config::override_text("checkpoint.last_save_model_only", "false"));
  }
  return fmt::format(
      "This run {}; newer checkpoints stay in {} until it reaches their steps ({}): a start before that "
      "tries them first{}; move them away, or name the step by checkpoint.load_step{}",
      used == step ? fmt::format("resumes from step-{}", used)
                   : fmt::format("starts from step-{} and counts from step {}", used, step),
      folder.path().string(), fmt::join(newer, ", "),
      weights > 0 ? ", and takes weights of the last step for the end of the run" : "",
      again.empty() ? "" : "; " + again);
}

void require_same_tokenizer(const config::ResolvedConfig& resolved, const ChosenCheckpoint& chosen,
                            const TokenizerRecord& own) {
  const bool allowed = resolved.config.checkpoint.allow_other_tokenizer;
  const bool position = chosen.components.contains(checkpoint::kLoaderComponent) &&
                        chosen.find_object(checkpoint::kLoaderPositionKey) != nullptr;
  const std::string leave_out =
      leave_out_remedy(resolved.config, chosen.source, checkpoint::kLoaderComponent);
  std::string allow = "start with " + config::override_text("checkpoint.allow_other_tokenizer", "true");
  if (position && !allowed)
    allow +=
        fmt::format(" and, because the position in the data counts the other one's tokens, {}", leave_out);
  const bool differs = require_same_tokenizer(
      chosen.path, read_record(chosen.checkpoint).tokenizer,
      {.path = own.path,
       .hash = own.hash,
       .chosen_by = fmt::format("model.hf_assets_path ({})", resolved.origin("model.hf_assets_path")),
       .choose =
           [](const std::string& path) {
             return "start with " + config::override_text("model.hf_assets_path", path);
           },
       .allow = allow,
       .allowed_by = allowed ? "checkpoint.allow_other_tokenizer" : ""});
  if (differs && position)
    throw_config("{}: its position in the data counts the tokens of another tokenizer: {}",
                 chosen.path.string(), leave_out);
}

}  // namespace hyperion::checkpointing
