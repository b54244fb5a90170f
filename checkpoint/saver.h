// Saves the state of a job, at once or while training continues. One save at a time: its data are copied to a
// pool that was allocated once (or read where they are, when training waits), a thread writes and commits
// them.
//
// All calls are for the training thread, in the same order on every rank. The thread of a save has a
// coordinator of its own, so that its exchanges never mix with the collectives of training.
#pragma once

#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/save_job.h"
#include "checkpoint/staging_pool.h"
#include "checkpoint/state.h"

namespace hyperion::checkpoint {

struct SaverOptions {
  std::filesystem::path folder;  // of the step-N folders
  Writers writers = Writers::kAll;
  AsyncMode async = AsyncMode::kDisabled;
  int64_t keep_latest = 0;  // 0: all
  int ranks_per_node = 1;
  std::map<std::string, std::string> facts{};  // go into every manifest: versions, configuration's hash
  // What a rank holds of the tensors of a kind. Required.
  std::function<std::optional<HeldPart>(const SaveLayout::Kind& kind, int rank)> held_part;
};

// What a save holds.
struct SaveContent {
  CheckpointKind kind = CheckpointKind::kFull;
  std::function<bool(const std::string& key)> wanted{};  // which tensors and objects; empty: all
  std::optional<Dtype> model_dtype{};                    // floating-point tensors are written in it
};

class Saver {
 public:
  // Components and what their tensors point at must outlive the saver. Collective.
  Saver(SaverOptions options, std::vector<StateComponent*> components, Coordinator& ranks,
        MemoryMover& mover);
  ~Saver();  // waits for a save in flight; its failure is logged
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // Bytes of the .metadata of a save of everything, but for its objects. Throws Error(kSaveFailed) when they
  // are more than readers accept.
  uint64_t index_bytes();

  // A save of everything, written, committed, read back from disk and compared; `keep`: it stays as
  // step-<step>, else it goes to a temporary name and is removed. `probe`: of the smallest tensor only. Warms
  // what later saves use, the pool too where it is there. Throws Error(kPreCheckpoint), or Error(kNonFinite).
  SaveReport preflight(int64_t step, bool keep, bool probe = false);

  // Before preflight() and training, when background saves will follow: makes their plan and allocates their
  // pool, which the system gets memory for while the first steps run (pinned memory: now), so that the first
  // of these saves is as quick as the others. Where some rank has no memory for it, no rank keeps one and
  // saves are synchronous from then on; rank 0 logs that. Does nothing in mode kDisabled, or where the pool
  // is there. Collective.
  void prepare_pool();

  // Saves `step`. Waits for the save before it. Synchronous in mode kDisabled or when `now`. Returns whether
  // the checkpoint is durable already; else a thread writes it.
  bool save(int64_t step, const SaveContent& content = {}, bool now = false);

  // Returns when nothing reads the live state any more. Call before the state changes.
  void join_staging();
  // Whether the save in the background has ended, with or without success: finish() will not wait long.
  bool save_ended() const;
  bool save_failed() const;
  bool save_in_flight() const { return in_flight_ && !save_ended(); }
  // Waits for the save in flight, if any. Throws what write_checkpoint() threw.
  void finish();

  // Called with the report of each durable save that stays; on the thread of the save.
  std::function<void(const SaveReport&)> on_durable;
  // Called when all data of a save in the background have been copied, with the seconds that training waited
  // for it; on the training thread.
  std::function<void(int64_t step, double stall_seconds)> on_staged;

  uint64_t pool_bytes() const { return pool_.bytes(); }
  double stall_seconds() const { return stall_seconds_; }  // of the last save: in save() and join_staging()
  CheckpointFolder& folder() { return folder_; }
  // Of all components.
  const std::vector<TensorState>& tensors();

 private:
  struct CachedPlan {
    std::vector<TensorState> tensors;  // those it holds
    SaveLayout layout;
    SavePlan plan;
  };
  struct InFlightSave;  // the save that a thread works on
  class Items;
  CachedPlan& plan_for(const SaveContent& content);
  CachedPlan make_plan(const SaveContent& content);
  // Throws Error(kBug) on every rank when the ranks plan different saves, or a rank holds something else than
  // the others take it to hold. Collective.
  void require_same_plan(const CachedPlan& planned, const std::vector<HeldParts>& held);
  SaveJob make_job(int64_t step, const SaveContent& content, const CachedPlan& planned);
  std::shared_ptr<Items> make_items(const CachedPlan& planned, bool staged);
  void start_in_background(SaveJob job, std::shared_ptr<Items> items);
  SaveReport write_and_purge(const SaveJob& job, Items& items);

  SaverOptions options_;
  std::vector<StateComponent*> components_;
  Coordinator& ranks_;
  MemoryMover& mover_;
  CheckpointFolder folder_;
  std::vector<TensorState> tensors_;
  std::optional<CachedPlan> full_;     // the plan of a save of everything: made once
  std::optional<CachedPlan> partial_;  // the last other one
  std::string run_id_;
  int64_t next_id_ = 0;
  StagingPool pool_;
  bool pooled_ = false;  // every rank has a pool that is large enough
  std::unique_ptr<InFlightSave> in_flight_;
  double stall_seconds_ = 0;
};

}  // namespace hyperion::checkpoint
