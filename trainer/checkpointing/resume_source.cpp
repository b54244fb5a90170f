#include "trainer/checkpointing/resume_source.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/log.h"
#include "checkpoint/misfit.h"
#include "trainer/config/input_path.h"
#include "trainer/config/validate.h"

namespace hyperion {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::json;

struct FoundStart {
  std::vector<Candidate> candidates{};  // best first
  std::optional<FinishedRun> finished{};
};

// What rank 0 found, on its way to the others.
std::string to_text(const FoundStart& found, const std::string& error) {
  Json json = {{"error", error}, {"candidates", Json::array()}};
  for (const Candidate& c : found.candidates)
    json["candidates"].push_back({c.path.string(), c.source == LoadSource::kOwn, c.step, c.hugging_face});
  if (const auto& finished = found.finished)
    json["finished"] = {finished->path.string(), finished->step, finished->resumable_step.value_or(-1)};
  return json.dump();
}

FoundStart from_text(const std::string& text) {
  const Json json = Json::parse(text);
  const std::string error = json.at("error");
  if (!error.empty()) throw Error(ExitCode::kBadData, error);
  FoundStart found;
  for (const Json& c : json.at("candidates")) {
    const std::string path = c.at(0);
    found.candidates.push_back({path, c.at(1) ? LoadSource::kOwn : LoadSource::kInitial, c.at(2), c.at(3)});
  }
  if (const auto finished = json.find("finished"); finished != json.end()) {
    const std::string path = finished->at(0);
    const int64_t step = finished->at(2);
    found.finished = {path, finished->at(1), step < 0 ? std::nullopt : std::optional(step)};
  }
  return found;
}

std::string to_text(const LoadFailure& failure) {
  return fmt::format("{} {:d} {}", static_cast<int>(failure.code), failure.damaged, failure.why);
}

LoadFailure failure_from_text(const std::string& text) {
  LoadFailure failure;
  const size_t flag = text.find(' ') + 1;
  failure.code = static_cast<ExitCode>(std::stoi(text));
  failure.damaged = text.at(flag) == '1';
  failure.why = text.substr(flag + 2);
  return failure;
}

// The failure that decides: one that no earlier checkpoint mends goes before damage.
LoadFailure worst_of(const std::vector<std::string>& texts) {
  LoadFailure worst;
  for (const std::string& text : texts) {
    LoadFailure failure = failure_from_text(text);
    if (failure.code == ExitCode::kOk) continue;
    if (worst.code == ExitCode::kOk || (worst.damaged && !failure.damaged)) worst = std::move(failure);
  }
  return worst;
}

bool holds_optimizer(const OpenCheckpoint& checkpoint) {
  return std::ranges::any_of(checkpoint.index.tensors, [](const auto& tensor) {
    return component_of(tensor.first) == kOptimizerComponent;
  });
}

// The explicit wish for weights of a checkpoint that holds nothing else.
bool wants_weights_only(const JobConfig& config) {
  const auto& wanted = config.checkpoint.components;
  return !wanted.empty() && std::ranges::all_of(wanted, [](const std::string& c) {
    return c == kModelComponent || c == kEmaComponent;
  });
}

// The options that start a job from `path`.
std::string initial_load(const fs::path& path, bool hugging_face) {
  return override_text("checkpoint.initial_load_path", path.string()) + " " +
         override_text("checkpoint.initial_load_in_hf", hugging_face ? "true" : "false");
}

// The job's own checkpoints, newest first; what cannot be resumed from is left out and named in the log.
FoundStart own_checkpoints(const JobConfig& config, const CheckpointFolder& folder) {
  const int64_t wanted = config.checkpoint.load_step;
  FoundStart start;
  std::vector<Candidate>& found = start.candidates;
  std::vector<std::string> skipped;
  std::vector<FoundCheckpoint> entries = folder.scan();
  std::ranges::sort(entries, std::greater(), &FoundCheckpoint::step);
  for (const FoundCheckpoint& entry : entries) {
    if (wanted != -1 && entry.step != wanted) continue;
    const bool weights = !entry.unreadable && entry.complete() && holds_weights_alone(entry) &&
                         !(wants_weights_only(config) && name_exists(entry.path / ".metadata"));
    if (weights && wanted == -1 && found.empty() && !start.finished && entry.step >= config.training.steps) {
      start.finished = {entry.path, entry.step};
      continue;
    }
    std::string problem = entry.unreadable ? "" : entry.why_not;  // the job ends when it comes to it
    if (weights)
      problem = fmt::format("it holds weights alone; a new run, in another folder, starts from them with {}",
                            initial_load(entry.path, !name_exists(entry.path / ".metadata")));
    if (problem.empty()) {
      found.push_back({entry.path, LoadSource::kOwn, entry.step, false});
      continue;
    }
    if (!start.finished) log_warning("Checkpoint {} is not resumed from: {}", entry.path.string(), problem);
    skipped.push_back(fmt::format("{}: {}", entry.path.string(), problem));
  }
  if (start.finished) {
    if (!found.empty()) start.finished->resumable_step = found.front().step;
    found.clear();
    return start;
  }
  if (!found.empty()) return start;
  if (!skipped.empty())
    throw_data("no checkpoint in {} can be resumed from: {}", folder.path().string(),
               fmt::join(skipped, "; "));
  if (wanted != -1)
    throw_data("checkpoint.load_step = {}: there is no step-{} in {}", wanted, wanted,
               folder.path().string());
  return start;
}

// `path`, where the job starts from, is in the format that the configuration says.
void require_format(const fs::path& path, bool hugging_face) {
  const bool dcp = name_exists(path / ".metadata");
  if (dcp && hugging_face)
    throw_data(
        "checkpoint.initial_load_in_hf = true expects safetensors, but {} is a checkpoint in DCP format (it "
        "holds .metadata): start with {}",
        path.string(), initial_load(path, /*hugging_face=*/false));
  if (dcp) return;
  bool safetensors = path.extension() == ".safetensors";
  std::vector<std::string> steps;
  if (is_folder(path)) {
    for (const fs::path& entry : entries_of(path)) {
      if (entry.extension() == ".safetensors") safetensors = true;
      if (step_of_name(entry.filename().string())) steps.push_back(entry.filename().string());
    }
  }
  if (hugging_face == safetensors && safetensors) return;
  if (safetensors)
    throw_data(
        "checkpoint.initial_load_path: {} holds safetensors (Hugging Face's format) and no checkpoint in DCP "
        "format: start with {}",
        path.string(), initial_load(path, /*hugging_face=*/true));
  std::ranges::sort(steps, {}, [](const std::string& name) { return step_of_name(name).value(); });
  throw_data(
      "checkpoint.initial_load_path: {} holds no {}: name the folder of one {}{}", path.string(),
      hugging_face ? "safetensors" : ".metadata",
      hugging_face ? "model of Hugging Face (config.json, *.safetensors)" : "checkpoint (.../step-100)",
      steps.empty() ? "" : fmt::format("; {} is in it", steps.back()));
}

// The checkpoints that the job could start from, or that it has nothing left to do.
FoundStart find_start(const JobConfig& config, const CheckpointFolder& folder, const fs::path& install_root) {
  const auto& options = config.checkpoint;
  FoundStart own;
  // A seed checkpoint holds the initial weights, whatever has been trained beside it.
  if (!options.create_seed_checkpoint && (path_exists(folder.path()) || options.load_step != -1))
    own = own_checkpoints(config, folder);
  if (!own.candidates.empty() || own.finished) {
    if (options.initial_load_path || options.initial_load_in_hf)
      log_info("Checkpoints of this job are in {}: the initial load is not used", folder.path().string());
    return own;
  }
  if (!options.initial_load_path && !options.initial_load_in_hf) return {};
  const fs::path path =
      resolve_input(options.initial_load_path.value_or(config.model.hf_assets_path), install_root);
  if (!path_exists(path))
    throw_data("checkpoint.initial_load_path: there is no {} to load from", path.string());
  require_format(path, options.initial_load_in_hf);
  return {.candidates = {{path, LoadSource::kInitial, 0, options.initial_load_in_hf}}};
}

}  // namespace

bool holds_weights_alone(const FoundCheckpoint& found) {
  if (found.kind == CheckpointKind::kModel || !name_exists(found.path / ".metadata")) return true;
  if (found.manifest || found.step == 0) return false;  // a step-0 of torchtitan is a seed
  try {
    return !holds_optimizer(open_checkpoint(found.path));
  } catch (const Error&) {
    return false;  // damage is named when it is loaded
  }
}

// Damage may be what one rank alone sees; what does not fit is the same for all.
LoadFailure::LoadFailure(const Error& error, int rank)
    : code(error.code()),
      damaged(error.code() == ExitCode::kBadData && dynamic_cast<const Misfit*>(&error) == nullptr &&
              dynamic_cast<const PermissionDenied*>(&error) == nullptr),
      why(damaged ? fmt::format("rank {}: {}", rank, error.what()) : error.what()) {
  if (dynamic_cast<const PermissionDenied*>(&error) != nullptr)
    why += "; give the job's user the permission to read it, or move it away";
}

ResumeSource::ResumeSource(const JobConfig& config, const CheckpointFolder& folder,
                           const fs::path& install_root, Coordinator& ranks)
    : config_(config), ranks_(ranks) {
  std::string text;
  if (ranks.rank() == 0) {
    try {
      text = to_text(find_start(config, folder, install_root), "");
    } catch (const Error& error) {
      text = to_text({}, error.what());
    }
  }
  FoundStart found = from_text(ranks.all_gather(text).front());
  candidates_ = std::move(found.candidates);
  finished_ = std::move(found.finished);
  if (!candidates_.empty()) open_next();
}

bool ResumeSource::settle(const LoadFailure& failure) {
  if (accepted(failure)) return true;
  open_next();
  return false;
}

// Opens the next candidate that every rank can open.
void ResumeSource::open_next() {
  while (true) {
    const Candidate& candidate = candidates_[next_++];
    LoadFailure failure;
    try {
      chosen_ = open(candidate);
    } catch (const Error& error) {
      failure = LoadFailure(error, ranks_.rank());
    }
    if (accepted(failure)) return;
  }
}

// Whether every rank can use the candidate last opened. False: some cannot, and there is one before it to
// try.
bool ResumeSource::accepted(const LoadFailure& failure) {
  const LoadFailure worst = worst_of(ranks_.all_gather(to_text(failure)));
  if (worst.code == ExitCode::kOk) return true;
  const bool more = next_ < candidates_.size() && config_.checkpoint.on_corrupt == OnCorrupt::kPrevious &&
                    config_.checkpoint.load_step == -1;
  if (!worst.damaged || !more) throw Error(worst.code, worst.why);
  log_warning("Checkpoint {} cannot be used, trying the one before it: {}",
              candidates_[next_ - 1].path.string(), worst.why);
  return false;
}

// Averages that the checkpoint or the job does not have.
void ResumeSource::settle_ema(ChosenCheckpoint& chosen) const {
  const bool there = std::ranges::any_of(
      chosen.names, [](const auto& name) { return component_of(name.first) == kEmaComponent; });
  if (!config_.ema.enable) {
    if (there)
      log_warning(
          "{} holds averaged weights (ema), which this job does not use: they are not read and will "
          "not be in its own checkpoints",
          chosen.candidate.path.string());
    return;
  }
  if (there || !chosen.components.contains("ema")) return;
  if (config_.ema.on_missing == OnMissingEma::kError)
    throw_misfit(
        "{}: ema.enable = true, but the checkpoint holds no averaged weights; to start them from "
        "the weights, start with {}",
        chosen.candidate.path.string(), override_text("ema.on_missing", "init_from_model"));
  log_info("The averaged weights (ema) start from the weights of {}", chosen.candidate.path.string());
  chosen.components.erase("ema");
}

ChosenCheckpoint ResumeSource::open(const Candidate& candidate) const {
  ChosenCheckpoint chosen;
  chosen.candidate = candidate;
  chosen.checkpoint = open_checkpoint(candidate.path);
  const CheckpointIndex& index = chosen.checkpoint.index;
  std::vector<std::string> keys;
  for (const auto& [key, record] : index.tensors) keys.push_back(key);
  for (const auto& [key, record] : index.objects) keys.push_back(key);
  RenameTable table(config_.checkpoint.rename.begin(), config_.checkpoint.rename.end());
  chosen.names = NameMap(table).apply(keys);
  if (candidate.hugging_face) {
    chosen.components = {"model"};
    return chosen;
  }
  const bool seed = chosen.checkpoint.manifest && chosen.checkpoint.manifest->kind == CheckpointKind::kSeed;
  const bool weights_only = seed || !holds_optimizer(chosen.checkpoint);
  chosen.components = components_to_load(config_, candidate.source, weights_only);
  for (const std::string& part : parts_left_out(config_, candidate.source, weights_only))
    if (std::ranges::any_of(chosen.names, [&](const auto& name) { return component_of(name.first) == part; }))
      chosen.left_out.push_back(part);
  settle_ema(chosen);
  const auto wanted = [&](const std::string& name) { return chosen.components.contains(component_of(name)); };
  std::set<std::string> object_keys;
  for (const auto& [name, key] : chosen.names)
    if (index.objects.contains(key) && (wanted(name) || name == "dataloader.world_size"))
      object_keys.insert(key);
  const std::map<std::string, Object> objects =
      load_objects(chosen.checkpoint, [&](const std::string& key) { return object_keys.contains(key); });
  for (const auto& [name, key] : chosen.names)
    if (const auto found = objects.find(key); found != objects.end())
      chosen.objects.emplace(name, found->second);
  return chosen;
}

void require_same_tokenizer(const ResolvedConfig& resolved, const ChosenCheckpoint& chosen,
                            const TokenizerRecord& own) {
  const bool allowed = resolved.config.checkpoint.allow_other_tokenizer;
  const bool position =
      chosen.components.contains("dataloader") && chosen.find("dataloader.position") != nullptr;
  const std::string leave_out = leave_out_remedy(resolved.config, chosen.candidate.source, "dataloader");
  std::string allow = "start with " + override_text("checkpoint.allow_other_tokenizer", "true");
  if (position && !allowed)
    allow +=
        fmt::format(" and, because the position in the data counts the other one's tokens, {}", leave_out);
  const bool differs = require_same_tokenizer(
      chosen.candidate.path, read_record(chosen.checkpoint).tokenizer,
      {.path = own.path,
       .hash = own.hash,
       .chosen_by = fmt::format("model.hf_assets_path ({})", resolved.origin("model.hf_assets_path")),
       .choose =
           [](const std::string& path) {
             return "start with " + override_text("model.hf_assets_path", path);
           },
       .allow = allow,
       .allowed_by = allowed ? "checkpoint.allow_other_tokenizer" : ""});
  if (differs && position)
    throw_config("{}: its position in the data counts the tokens of another tokenizer: {}",
                 chosen.candidate.path.string(), leave_out);
}

}  // namespace hyperion
