// Which checkpoint a job starts from: its own newest complete one, the one its configuration names, or
// none. Rank 0 lists them, all ranks open the same.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/collective.h"
#include "checkpoint/loader.h"
#include "checkpoint/names.h"
#include "checkpoint/storage/checkpoint_folder.h"
#include "trainer/checkpointing/component_choice.h"
#include "trainer/checkpointing/job_record.h"
#include "trainer/config/load.h"

namespace hyperion::checkpointing {

// The checkpoint a job loads.
struct ChosenCheckpoint {
  std::filesystem::path path;
  LoadSource source = LoadSource::kOwn;
  bool hugging_face = false;  // names are Hugging Face's
  checkpoint::OpenCheckpoint checkpoint;
  std::map<std::string, std::string> names;  // name here (or Hugging Face's) -> key in the checkpoint
  checkpoint::ComponentSet components;       // to be loaded
  std::vector<std::string> left_out;  // of those it holds, by checkpoint.components or exclude_from_loading
  std::map<std::string, checkpoint::Object, std::less<>> objects;  // of the components, by name here

  // Null when it holds no such value, or the value belongs to a component that is not loaded; the trajectory
  // is there in any case.
  const checkpoint::Object* find_object(std::string_view name) const {
    const auto found = objects.find(name);
    return found == objects.end() ? nullptr : &found->second;
  }
  // Null for a value of another kind, too.
  template <typename T>
  const T* find_value(std::string_view name) const {
    const checkpoint::Object* object = find_object(name);
    return object ? object->get_if<T>() : nullptr;
  }
};

// A job that has nothing left to do: its newest checkpoint holds the weights of its last step alone, from
// which no run can resume.
struct FinishedRun {
  std::filesystem::path path;
  int64_t step = 0;
  std::optional<int64_t> resumable_step{};  // of the newest checkpoint that a longer run would resume from
};

// What a job starts from: a checkpoint, a run that is finished, or neither.
struct StartingPoint {
  std::optional<ChosenCheckpoint> checkpoint{};
  std::optional<FinishedRun> finished{};
  std::vector<std::filesystem::path> untried{};  // the job's own checkpoints before it, newest first
};

// `folder`: of the job's own checkpoints. Lists them, or what the configuration names to start from, and
// opens the newest that every rank can open: from a damaged one it falls back to the one before, as
// checkpoint.on_corrupt says. Collective. Throws Error(kBadData), the same on every rank, when what the
// configuration names is not there or no checkpoint can be used; IncompatibleCheckpoint.
StartingPoint choose_start(const config::JobConfig& config, const checkpoint::CheckpointFolder& folder,
                           const std::filesystem::path& install_root, Coordinator& ranks);
// After the load of start.checkpoint has failed with `error` on every rank: opens the newest one before it
// that every rank can open. False when the failure is no damage or none is before it. Collective.
bool fall_back_to_older(const config::JobConfig& config, StartingPoint& start, const Error& error,
                        Coordinator& ranks);

// collectively() for what reads a checkpoint: where a permission is missing the message says what to do.
void read_collectively(Coordinator& ranks, const std::function<void()>& action);

// The warning of a job that resumes from an older checkpoint than the newest one: which stay, because they
// are damaged or hold weights alone, or because checkpoint.load_step or the parts that are read say so; which
// steps are trained again; and what the next start makes of them. "" when none is newer. `step`: updates done
// in this run's count; `last`: training.steps.
std::string explain_newer_checkpoints(const StartingPoint& start, const checkpoint::CheckpointFolder& folder,
                                      int64_t step, int64_t last);

// Throws Error(kUsage), with the ways out, when the weights that are loaded were trained with another
// tokenizer than this job's, unless checkpoint.allow_other_tokenizer says that they may be.
void require_same_tokenizer(const config::ResolvedConfig& resolved, const ChosenCheckpoint& chosen,
                            const TokenizerRecord& own);

}  // namespace hyperion::checkpointing
