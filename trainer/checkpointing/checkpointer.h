// A Checkpointer decides for one training job which checkpoint it starts from, when it saves, what a save
// holds and what a failed save means. The folder checkpoint/ reads and writes.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/saver.h"
#include "trainer/checkpointing/start.h"
#include "trainer/config/job_config.h"
#include "trainer/hugging_face/config.h"
#include "trainer/metrics/metrics_jsonl.h"
#include "trainer/runtime/batch_job.h"
#include "trainer/runtime/runtime.h"

namespace hyperion::checkpointing {

// Returns the tensors that a load of the chosen checkpoint fills. Compares everything that needs no tensor
// data. Hugging Face's names and row order are translated for `model`. Throws IncompatibleCheckpoint.
std::vector<checkpoint::LoadItem> plan_component_load(
    const ChosenCheckpoint& chosen, const std::vector<checkpoint::StateComponent*>& components,
    const config::JobConfig& config, const models::ModelArgs& model);
// Throws IncompatibleCheckpoint if a second name of a tensor (a tied head) has different values in this
// rank's shard.
void require_equal_aliases(const ChosenCheckpoint& chosen, const std::vector<checkpoint::LoadItem>& items,
                           const config::JobConfig& config);
// Loads the checkpoint's values into the components. Throws IncompatibleCheckpoint if a component rejects a
// value.
void load_values(const ChosenCheckpoint& chosen, const std::vector<checkpoint::StateComponent*>& components);

// The state that a job loads and saves. Everything it points at outlives the checkpointer.
struct CheckpointedState {
  const config::JobConfig& config;  // the configuration that the run follows
  const models::ModelArgs& model;
  std::vector<checkpoint::StateComponent*> components;  // in load order
  checkpoint::MemoryMover& mover;
  std::map<std::string, std::string> facts;  // for every manifest
  // checkpoint.last_save_in_hf writes these files next to the weights, and these notes into their headers.
  hugging_face::HuggingFaceFiles exported{};
  std::map<std::string, std::string> export_notes{};
};

// All calls except getters are collective. With checkpoint.enable = false, and in a dry run, they do nothing.
class Checkpointer {
 public:
  // Locks the folder, unless this job only loads, and chooses the checkpoint to start from. Construct it
  // before the model, because the checkpoint affects the configuration. `configured` outlives this object.
  // Throws Error(kUsage) if another run has locked the folder, Error(kPreCheckpoint), and the errors of
  // choose_start().
  Checkpointer(const config::JobConfig& configured, const trainer::Runtime& runtime,
               const std::filesystem::path& install_root);

  bool enabled() const { return ranks_ != nullptr; }
  // The checkpoint to load, or null.
  const ChosenCheckpoint* chosen() const { return start_.checkpoint ? &*start_.checkpoint : nullptr; }
  const std::optional<FinishedRun>& finished() const { return start_.finished; }

  // Call it before all functions below.
  void attach(CheckpointedState state);

  // Loads the state from the chosen checkpoint. If that is damaged, it falls back to the previous checkpoint
  // as checkpoint.on_corrupt says. Throws Error(kBadData), IncompatibleCheckpoint.
  void load();

  // Prepares background saves, checks that no file or link occupies the name of a step to be saved, saves
  // before this run's first step and reads the save back. `step` is the number of updates done. Throws
  // Error(kPreCheckpoint), Error(kNonFinite).
  void preflight(int64_t step);

  // Waits until no save reads the state. Call it before anything changes the state.
  void wait();
  // Returns whether a background save of this rank has failed. The step agreement tells all ranks.
  bool failed() const { return saver_ && saver_->save_failed(); }

  // Returns whether a periodic save is due after `step`. The job's last save does not count.
  bool due(int64_t step) const;
  // StepEnd says what save() has to know of the end of a step.
  struct StepEnd {
    bool last = false;         // the job's last step, which is saved in any case
    bool save_failed = false;  // some rank's background save has failed
  };
  // Saves after `step` if a save is due. Throws Error(kSaveFailed) if the job's last save fails, or a
  // periodic save if checkpoint.on_save_failure says so; Error(kNonFinite) if the state holds NaN or
  // infinite numbers.
  void save(int64_t step, const StepEnd& end);
  // Saves `step` when a signal ends the job, unless it is already saved. Throws as save() does.
  void save_stopped(int64_t step);
  // Saves the initial weights as step-0 (create_seed_checkpoint).
  void save_seed();
  // Waits for saves in flight. Throws as save() does.
  void finish();

  // Returns the end of a sentence: the command that makes the configured last save (model only, Hugging Face)
  // from `newest`, the checkpoint of `step`. For a run that has done all its steps. Returns "" if that save
  // exists or none is configured.
  std::string last_save_remedy(const std::filesystem::path& newest, int64_t step) const;

  // Receives the events about saves for metrics.jsonl. The save thread calls it too.
  std::function<void(int64_t step, const std::string& event, const metrics::JsonFields& fields)> on_event =
      [](int64_t, const std::string&, const metrics::JsonFields&) {};

  // Seconds of the last complete save or of the preflight's; 0 before the first.
  double save_seconds() const { return save_seconds_; }

 private:
  const config::JobConfig::Checkpoint& options() const { return config_->checkpoint; }
  bool saves() const { return saver_ && !options().load_only; }
  void load_from(const ChosenCheckpoint& chosen);
  void announce_index_size();
  void prepare_background_saves(int64_t step);
  void save_before_training(int64_t step, bool resumed);
  void write(int64_t step, const checkpoint::SaveContent& content, checkpoint::SaveTiming timing);
  void write_last(int64_t step);
  void write_for_hugging_face(int64_t step);
  void tolerate_failure(const std::function<void()>& action);

  const config::JobConfig* config_;  // as configured; after attach() the one that the run follows
  const trainer::Runtime& runtime_;
  std::filesystem::path path_;
  std::shared_ptr<parallel::Communicator> ranks_;  // null: no checkpoints
  std::optional<checkpoint::FolderLock> lock_;     // rank 0 holds it for all
  StartingPoint start_;
  std::optional<CheckpointedState> state_;
  std::atomic<double> save_seconds_ = 0;  // the save thread writes it too; saver_'s destructor waits for that
  std::optional<trainer::ProgressFile> progress_{};  // on rank 0, from the preflight on
  std::optional<checkpoint::Saver> saver_;
  int64_t saved_ = -1;  // step of the last successful periodic save
};

}  // namespace hyperion::checkpointing
