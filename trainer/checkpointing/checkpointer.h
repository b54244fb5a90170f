// The checkpoints of one training job: where it starts from, when it saves, what a save holds, and what its
// failures mean for the job. Reading and writing are checkpoint/'s.
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

// The tensors that a load of the chosen checkpoint fills: everything is compared that can be compared without
// reading tensors. `model`: whose weights Hugging Face's names and row order are translated for. Throws
// IncompatibleCheckpoint.
std::vector<checkpoint::LoadItem> plan_component_load(
    const ChosenCheckpoint& chosen, const std::vector<checkpoint::StateComponent*>& components,
    const config::JobConfig& config, const models::ModelArgs& model);
// Throws IncompatibleCheckpoint where a second name of a tensor (a tied head) holds other numbers in this
// rank's part.
void require_equal_aliases(const ChosenCheckpoint& chosen, const std::vector<checkpoint::LoadItem>& items,
                           const config::JobConfig& config);
// Gives the components the values of the checkpoint. Throws IncompatibleCheckpoint for what one does not
// take.
void load_values(const ChosenCheckpoint& chosen, const std::vector<checkpoint::StateComponent*>& components);

// What a job loads and saves. All that it points at outlives the checkpointer.
struct CheckpointedState {
  const config::JobConfig& config;  // that the run follows
  const models::ModelArgs& model;
  std::vector<checkpoint::StateComponent*> components;  // in the order in which they are loaded
  checkpoint::MemoryMover& mover;
  std::map<std::string, std::string> facts;  // for every manifest
  // For checkpoint.last_save_in_hf: the files next to the weights, and notes in their headers.
  hugging_face::HuggingFaceFiles exported{};
  std::map<std::string, std::string> export_notes{};
};

// All calls are collective, but for the getters. With checkpoint.enable = false, and in a dry run, none of
// them does anything.
class Checkpointer {
 public:
  // Before the model is made, because a checkpoint decides about the configuration: locks the folder, unless
  // this job only loads, and chooses what the job starts from. `configured` outlives this object. Throws
  // Error(kUsage) when another run holds the folder, Error(kPreCheckpoint), what choose_start() throws.
  Checkpointer(const config::JobConfig& configured, const trainer::Runtime& runtime,
               const std::filesystem::path& install_root);

  bool enabled() const { return ranks_ != nullptr; }
  // The checkpoint to load, or null.
  const ChosenCheckpoint* chosen() const { return start_.checkpoint ? &*start_.checkpoint : nullptr; }
  const std::optional<FinishedRun>& finished() const { return start_.finished; }

  // Before all that follows.
  void attach(CheckpointedState state);

  // Fills the state from the chosen checkpoint; from a damaged one it falls back to the one before, as
  // checkpoint.on_corrupt says. Throws Error(kBadData), IncompatibleCheckpoint.
  void load();

  // Prepares for background saves; saves before the first step of this run (`step`: updates done so far) and
  // reads back what was written, after a check that no file or link has the name of a step to be saved.
  // Throws Error(kPreCheckpoint), Error(kNonFinite).
  void preflight(int64_t step);

  // Returns when no save reads the state any more. Before anything changes the state.
  void wait();
  // Whether a background save of this rank has failed: all ranks learn it from what a step exchanges.
  bool failed() const { return saver_ && saver_->save_failed(); }

  // Whether the save after `step` is due, apart from the job's last one.
  bool due(int64_t step) const;
  // After `step`: saves when that is due. `failed`: some rank's background save has failed. Throws
  // Error(kSaveFailed) when the job's last save fails, and after a periodic one when
  // checkpoint.on_save_failure says so; Error(kNonFinite) when the state holds NaN or infinite numbers.
  void save(int64_t step, bool last, bool failed);
  // The job ends after `step` by a signal: saves it, unless that was just done. Throws as save() does.
  void save_stopped(int64_t step);
  // create_seed_checkpoint: the initial weights as step-0.
  void save_seed();
  // Waits for what is being written. Throws as save() does.
  void finish();

  // For a run that has made all its steps: the end of a sentence with the command that makes the last save
  // that is asked for (model only, Hugging Face) out of `newest`, its checkpoint of `step`; "" where it is
  // there, or none is asked for.
  std::string last_save_remedy(const std::filesystem::path& newest, int64_t step) const;

  // Called with what metrics.jsonl records about saves; also on the thread of a save.
  std::function<void(int64_t step, const std::string& event, const metrics::JsonFields& fields)> on_event =
      [](int64_t, const std::string&, const metrics::JsonFields&) {};

  // Of a complete save, measured by the last one or by the preflight; 0: not yet.
  double save_seconds() const { return save_seconds_; }

 private:
  const config::JobConfig::Checkpoint& options() const { return config_->checkpoint; }
  bool saves() const { return saver_ && !options().load_only; }
  void load_from(const ChosenCheckpoint& chosen);
  void announce_index_size();
  void prepare_background_saves(int64_t step);
  void save_before_training(int64_t step, bool resumed);
  void write(int64_t step, const checkpoint::SaveContent& content, bool now);
  void write_last(int64_t step);
  void write_for_hugging_face(int64_t step);
  void tolerate_failure(const std::function<void()>& action);

  const config::JobConfig* config_;  // as configured; from attach() on what the run follows
  const trainer::Runtime& runtime_;
  std::filesystem::path path_;
  std::shared_ptr<parallel::Communicator> ranks_;  // null: no checkpoints
  std::optional<checkpoint::FolderLock> lock_;     // rank 0 holds it for all
  StartingPoint start_;
  std::optional<CheckpointedState> state_;
  std::atomic<double> save_seconds_ = 0;  // set by the thread of a save too, which saver_'s end waits for
  std::optional<trainer::ProgressFile> progress_{};  // of rank 0, once training is about to start
  std::optional<checkpoint::Saver> saver_;
  int64_t saved_ = -1;  // the step of the last periodic save that did not fail
};

}  // namespace hyperion::checkpointing
