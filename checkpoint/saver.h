// A Saver saves the state of a job, synchronously or while training continues. One save runs at a time: its
// data is copied to a pool that is allocated once (or read in place if training waits), and a thread writes
// and commits it.
//
// All calls are for the training thread, in the same order on every rank. The save's thread uses a process
// group of its own, so that its exchanges never mix with the collectives of training.
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
  std::filesystem::path folder;  // holds the step-N folders
  Writers writers = Writers::kAll;
  AsyncMode async = AsyncMode::kDisabled;
  int64_t keep_latest = 0;  // 0: keep all
  int ranks_per_node = 1;
  std::map<std::string, std::string> facts{};  // written to every manifest: versions, configuration's hash
  // The part of a kind's tensors that a rank holds. Required.
  std::function<std::optional<HeldPart>(const SaveLayout::Kind& kind, int rank)> held_part;
};

// The content of a save.
struct SaveContent {
  CheckpointKind kind = CheckpointKind::kFull;
  std::function<bool(const std::string& key)> wanted{};  // selects tensors and objects; empty: all
  std::optional<Dtype> model_dtype{};                    // type of floating-point tensors, if set
};

// kSynchronous: save() returns when the checkpoint is durable, whatever SaverOptions::async is.
enum class SaveTiming { kAsConfigured, kSynchronous };

struct PreflightOptions {
  bool keep = false;   // the save stays as step-<step>; else it gets a temporary name and is removed
  bool probe = false;  // it holds the smallest tensor only
};

class Saver {
 public:
  // Components and the memory of their tensors must outlive the saver. Collective.
  Saver(SaverOptions options, std::vector<StateComponent*> components, Coordinator& group,
        MemoryMover& mover);
  ~Saver();  // waits for a save in flight; its failure is logged
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // The size of the .metadata of a full save without its objects. Throws Error(kSaveFailed) if it exceeds
  // the limit of readers.
  uint64_t index_bytes();

  // Writes a full save, commits it, reads it back from disk and compares. It warms up what later saves use,
  // including the pool if allocated. Throws Error(kPreCheckpoint), or Error(kNonFinite).
  SaveReport preflight(int64_t step, const PreflightOptions& options);

  // Call before preflight() and training if background saves will follow. Makes their plan and allocates
  // their pool, whose pages are populated while the first steps run (pinned memory: at once), so that the
  // first background save is as fast as the others. If any rank lacks memory for the pool, no rank keeps
  // one and saves are synchronous from then on; rank 0 logs that. Does nothing in mode kDisabled or if the
  // pool exists. Collective.
  void prepare_pool();

  // Saves `step`. Waits for the previous save. Synchronous in mode kDisabled too. Returns whether the
  // checkpoint is already durable; else a thread writes it.
  bool save(int64_t step, const SaveContent& content = {}, SaveTiming timing = SaveTiming::kAsConfigured);

  // Returns when the save no longer reads the live state. Call before the state changes.
  void join_staging();
  // Returns whether the background save has ended, with or without success: finish() then does not wait long.
  bool save_ended() const;
  bool save_failed() const;
  bool save_in_flight() const { return in_flight_ && !save_ended(); }
  // Waits for the save in flight, if any. Throws the error of write_checkpoint().
  void finish();

  // Called on the save's thread with the report of each durable save that is kept.
  std::function<void(const SaveReport&)> on_durable;
  // Called on the training thread when all data of a background save has been copied, with the seconds that
  // training waited for it.
  std::function<void(int64_t step, double stall_seconds)> on_staged;

  uint64_t pool_bytes() const { return pool_.bytes(); }
  double stall_seconds() const { return stall_seconds_; }  // time of the last save() and join_staging()
  CheckpointFolder& folder() { return folder_; }
  // The tensors of all components.
  const std::vector<TensorState>& tensors();

 private:
  struct CachedPlan {
    std::vector<TensorState> tensors;  // the tensors of the save
    SaveLayout layout;
    SavePlan plan;
  };
  struct InFlightSave;  // a background save and its thread
  class Items;
  CachedPlan& plan_for(const SaveContent& content);
  CachedPlan make_plan(const SaveContent& content);
  // Throws Error(kBug) on every rank if ranks plan different saves, or a rank holds other parts than the
  // others expect. Collective.
  void require_same_plan(const CachedPlan& planned, const std::vector<HeldParts>& held);
  SaveJob make_job(int64_t step, const SaveContent& content, const CachedPlan& planned);
  std::shared_ptr<Items> make_items(const CachedPlan& planned, bool staged);
  void start_in_background(SaveJob job, std::shared_ptr<Items> items);
  SaveReport write_and_purge(const SaveJob& job, Items& items);

  SaverOptions options_;
  std::vector<StateComponent*> components_;
  Coordinator& group_;
  MemoryMover& mover_;
  CheckpointFolder folder_;
  std::vector<TensorState> tensors_;
  std::optional<CachedPlan> full_;     // the plan of a full save, computed once
  std::optional<CachedPlan> partial_;  // the plan of the last partial save
  std::string run_id_;
  int64_t next_id_ = 0;
  StagingPool pool_;
  bool pooled_ = false;  // every rank has a sufficiently large pool
  std::unique_ptr<InFlightSave> in_flight_;
  double stall_seconds_ = 0;
};

}  // namespace hyperion::checkpoint
