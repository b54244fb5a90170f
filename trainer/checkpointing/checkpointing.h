// The checkpoints of one training job: when they are due, what they hold, and what their failures mean for
// the job. The saving itself is checkpoint/'s.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/saver.h"
#include "parallel/communicator.h"
#include "trainer/checkpointing/resume_source.h"
#include "trainer/config/job_config.h"
#include "trainer/metrics/metrics_jsonl.h"
#include "trainer/runtime/batch_job.h"
#include "trainer/runtime/runtime.h"

namespace hyperion {

// The folder of a job's checkpoints, under this job's lock unless it only loads, and what it starts from.
// Constructed before the model, because a checkpoint decides about the configuration.
class CheckpointAccess {
 public:
  // Collective. With checkpoint.enable = false, and in a dry run, nothing is touched.
  CheckpointAccess(const JobConfig& config, const Runtime& runtime,
                   const std::filesystem::path& install_root);

  bool enabled() const { return ranks_ != nullptr; }
  Coordinator& ranks() const { return *ranks_; }
  const std::filesystem::path& folder() const { return path_; }
  // The checkpoint to load, or null.
  const ChosenCheckpoint* chosen() const {
    return source_ && source_->chosen() ? &*source_->chosen() : nullptr;
  }
  // See ResumeSource::finished.
  const std::optional<FinishedRun>& finished() const {
    static const std::optional<FinishedRun> kNone;
    return source_ ? source_->finished() : kNone;
  }
  // See ResumeSource::use.
  bool use(const std::function<void()>& action) { return source_->use(action); }

 private:
  void lock_folder();
  std::filesystem::path path_;
  std::shared_ptr<Communicator> ranks_;
  std::optional<FolderLock> lock_;  // rank 0 holds it for all
  std::unique_ptr<ResumeSource> source_;
};

// What a load of a checkpoint into components is going to do, with everything compared that can be compared
// without reading tensors.
struct ComponentLoad {
  std::vector<TensorState> tensors;
  std::vector<LoadItem> items;  // of `tensors`
  LoadOptions options;
};
// `hugging_face_names`: how the model's weights are named and laid out in one of Hugging Face's. Throws
// IncompatibleCheckpoint.
ComponentLoad plan_component_load(const ChosenCheckpoint& chosen,
                                  const std::vector<StateComponent*>& components, const JobConfig& config,
                                  const std::function<StoredNames()>& hugging_face_names);
// Gives the components the values of the checkpoint. Throws IncompatibleCheckpoint for what one does not
// take.
void load_values(const ChosenCheckpoint& chosen, const std::vector<StateComponent*>& components);

class Checkpointing {
 public:
  // `components`: every part of the job's state, in the order in which they are loaded; they outlive this
  // object.
  Checkpointing(const JobConfig& config, const Runtime& runtime, CheckpointAccess& access,
                std::vector<StateComponent*> components, MemoryMover& mover,
                std::map<std::string, std::string> facts);

  // Fills the state from the chosen checkpoint. `hugging_face_names`: how the model's weights are named and
  // laid out in one of Hugging Face's. Collective.
  void load(const std::function<StoredNames(const ChosenCheckpoint&)>& hugging_face_names);

  // The full checkpoint before the first step of this run (`step`: updates done so far), after a look for
  // files and links that have the names of steps to be saved. Collective. Throws Error(kPreCheckpoint).
  void validate(int64_t step);

  // For checkpoint.last_save_in_hf: the names and row order of our weights there, the files beside them, and
  // what is said about the weights.
  struct HuggingFaceExport {
    std::function<std::pair<std::string, StoredNames::RowMap>(const std::string& name)> tensor;
    std::map<std::string, std::string> more_files, notes;
  };
  void set_hugging_face(HuggingFaceExport hugging_face) { hugging_face_ = std::move(hugging_face); }

  // Before the optimizer changes the state.
  void before_update();
  // Whether a background save of this rank has failed: all ranks learn it in the next step's exchange.
  bool failed() const { return saver_.failed(); }

  // After `step`: saves when one is due. `failed`: some rank's background save has failed. Throws
  // Error(kSaveFailed) when the job's last save fails, and after a periodic one when
  // checkpoint.on_save_failure says so; Error(kNonFinite) when the state holds NaN or infinite numbers.
  void after_step(int64_t step, bool last, bool failed);
  // The job ends after `step` by a signal: saves it, unless that was just done. Throws Error(kSaveFailed) or
  // Error(kNonFinite).
  void save_stopped(int64_t step);
  // Waits for what is being written.
  void finish();
  // create_seed_checkpoint: the initial weights as step-0.
  void save_seed();

  // Called with what metrics.jsonl records about saves; also on the thread of a save.
  std::function<void(int64_t step, const std::string& event, const EventFields& fields)> on_event;

  bool due(int64_t step) const;
  // Of a whole save, measured by the last one or by the pre-checkpoint; 0: not yet.
  double save_seconds() const { return save_seconds_; }
  Saver& saver() { return saver_; }

 private:
  void save_last(int64_t step);
  void save(int64_t step, const SaveContent& content, bool now);
  void report(int64_t step, const std::string& event, const EventFields& fields) const;
  void save_for_hugging_face(int64_t step);
  void log_newer(const ChosenCheckpoint& used) const;
  void require_free_names(int64_t first, int64_t last) const;
  template <typename Action>
  void tolerating_failure(const Action& action);

  const JobConfig& config_;
  const Runtime& runtime_;
  CheckpointAccess& access_;
  std::vector<StateComponent*> components_;
  MemoryMover& mover_;
  std::atomic<double> save_seconds_ = 0;    // set by the thread of a save too, which saver_'s end waits for
  std::optional<ProgressFile> progress_{};  // of rank 0, once training is about to start
  Saver saver_;
  HuggingFaceExport hugging_face_;
  int64_t saved_ = -1;  // the step of the last periodic save that did not fail
};

}  // namespace hyperion
