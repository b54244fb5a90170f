// Chooses the checkpoint that a job starts from: its own newest complete one, the one its configuration
// names, or none. Rank 0 lists the checkpoints; all ranks open the same one.
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
  bool hugging_face = false;  // has Hugging Face's names
  checkpoint::OpenCheckpoint checkpoint;
  std::map<std::string, std::string> names;  // our name (or Hugging Face's) -> key in the checkpoint
  checkpoint::ComponentSet components;       // the components to load
  std::vector<std::string> left_out;         // parts it holds that the configuration leaves out
  std::map<std::string, checkpoint::Object, std::less<>> objects;  // of `components`, by our name

  // Returns null if the checkpoint lacks the value or its component is not loaded. The trajectory is always
  // available.
  const checkpoint::Object* find_object(std::string_view name) const {
    const auto found = objects.find(name);
    return found == objects.end() ? nullptr : &found->second;
  }
  // Returns null also if the value has another type.
  template <typename T>
  const T* find_value(std::string_view name) const {
    const checkpoint::Object* object = find_object(name);
    return object ? object->get_if<T>() : nullptr;
  }
};

// A finished job: its newest checkpoint holds only the weights of its last step, from which no run can
// resume.
struct FinishedRun {
  std::filesystem::path path;
  int64_t step = 0;
  std::optional<int64_t> resumable_step{};  // the newest step from which a longer run would resume
};

// A job starts from a checkpoint, finds its run finished, or starts fresh.
struct StartingPoint {
  std::optional<ChosenCheckpoint> checkpoint{};
  std::optional<FinishedRun> finished{};
  std::vector<std::filesystem::path> untried{};  // the job's own older checkpoints, newest first
};

// Lists the job's own checkpoints in `folder`, or the ones that the configuration names, and opens the newest
// that every rank can open. If one is damaged it falls back to the previous one, as checkpoint.on_corrupt
// says. Collective. Throws the same Error(kBadData) on every rank if the named checkpoint is missing or no
// checkpoint is usable; IncompatibleCheckpoint.
StartingPoint choose_start(const config::JobConfig& config, const checkpoint::CheckpointFolder& folder,
                           const std::filesystem::path& install_root, Coordinator& ranks);
// Opens the newest older checkpoint that every rank can open. Call it after the load of start.checkpoint has
// failed with `error` on every rank. Returns false if `error` is not damage or there is no older checkpoint.
// Collective.
bool fall_back_to_older(const config::JobConfig& config, StartingPoint& start, const Error& error,
                        Coordinator& ranks);

// Runs an `action` that reads a checkpoint by collectively(). If a permission is missing, the message says
// what to do.
void read_collectively(Coordinator& ranks, const std::function<void()>& action);

// Returns the warning of a job that does not resume from its newest checkpoint. It names the newer
// checkpoints that stay and why (damaged, weights alone, checkpoint.load_step, the parts that are read), the
// steps that are trained again, and how the next start treats them. Returns "" if there is no newer one.
// `step` is the number of updates done in this run's count, `last` is training.steps.
std::string explain_newer_checkpoints(const StartingPoint& start, const checkpoint::CheckpointFolder& folder,
                                      int64_t step, int64_t last);

// Throws Error(kUsage), with the remedies, if the loaded weights were trained with a tokenizer other than
// this job's and checkpoint.allow_other_tokenizer is not set.
void require_same_tokenizer(const config::ResolvedConfig& resolved, const ChosenCheckpoint& chosen,
                            const TokenizerRecord& own);

}  // namespace hyperion::checkpointing
