// The folder of a run's checkpoints, each in a folder step-N. A checkpoint is visible or absent, never
// partial: it is written under a temporary name, flushed, and renamed.
//
//   step-<N>         a committed checkpoint
//   .incoming-<id>   a checkpoint being written
//   .trash-<id>      a checkpoint being removed
//   .lock            the lock of the run that writes here
//
// Nothing else in the folder is ever touched.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/storage/folder_lock.h"
#include "checkpoint/storage/manifest.h"

namespace hyperion::checkpoint {

// The prefix of a folder that a save moved aside because names cannot be exchanged; the step, "-" and any
// text follow.
constexpr std::string_view kReplacedPrefix = ".trash-replaced-";

// N of "step-N": digits without a leading zero, nothing before or after them.
std::optional<int64_t> step_of_name(std::string_view name);

// A folder named step-N.
struct StepFolder {
  int64_t step = 0;
  std::filesystem::path path;
  std::optional<Manifest> manifest{};              // nullopt for checkpoints of other programs
  CheckpointKind kind = CheckpointKind::kDamaged;  // the manifest's, if there is one
  std::string why_not{};                           // why it is unusable; empty if the cheap check passed
  bool complete() const { return why_not.empty(); }
  bool unreadable() const { return kind == CheckpointKind::kUnreadable; }
  // Returns whether it is incomplete, although a manifest or an index (of at least one rank) says that it was
  // once complete. A folder with neither was never finished, by another program.
  bool damaged() const;
  // Returns whether it is complete and a job can resume from it: it holds the full state, or the initial
  // weights.
  bool resumable() const { return complete() && manifest && kind != CheckpointKind::kModel; }
};

// Checks the manifest, its step, and the names and sizes of all files; reads no content.
StepFolder cheap_check(const std::filesystem::path& folder, int64_t step);
// Files in the folder that its manifest does not list. They are ignored, and named in a note.
std::vector<std::string> extra_files(const std::filesystem::path& folder, const Manifest& manifest);

// The checkpoints to keep. Checkpoints of other programs and incomplete ones are neither counted nor
// removed; a seed is kept. Of the remaining ones, the newest `keep` are kept (all for 0), the newest one
// with the full state, and `newest`, which counts as the newest whatever its step. A pre-checkpoint does
// not count, and is removed once a full checkpoint with a higher step exists.
struct PurgeRule {
  int64_t keep = 0;
  int64_t newest = -1;  // the step just saved, or -1
};
// The steps to remove, ascending. No I/O, no collectives.
std::vector<int64_t> steps_to_purge(const std::vector<StepFolder>& found, const PurgeRule& rule);

// Failures of a save throw Error(kSaveFailed) with path and errno. Not thread-safe.
class CheckpointFolder {
 public:
  explicit CheckpointFolder(std::filesystem::path folder) : folder_(std::move(folder)) {}
  const std::filesystem::path& path() const { return folder_; }
  std::filesystem::path step_path(int64_t step) const;
  std::filesystem::path incoming(const std::string& save_id) const;

  // All folders named step-N, by step, without symbolic links and files. Empty if the folder does not
  // exist. Needs no lock.
  std::vector<StepFolder> scan() const;

  // Creates incoming(save_id); every rank of the save calls it. The coordinator makes its name durable.
  std::filesystem::path begin(const std::string& save_id, bool coordinator) const;
  // Called by the coordinator once every file in `incoming` is on disk: flushes the folder, renames it to
  // step-N and flushes that. An existing step-N is exchanged and removed; on failure it is kept.
  void commit(const std::filesystem::path& incoming, int64_t step) const;
  // Removes the files of a failed save. Failures are warnings.
  void abandon(const std::filesystem::path& incoming) const noexcept;
  // Removes a checkpoint: renames it to a temporary name, then deletes its files. Failures are warnings.
  void discard(const std::filesystem::path& checkpoint) const noexcept;
  // Call before a run that may save any step from `first` to `last`: throws Error(kPreCheckpoint) if one of
  // those names belongs to a file or a link.
  void require_free_names(int64_t first, int64_t last) const;
  // Removes checkpoints that `rule` does not keep and returns their steps. Failures are warnings.
  std::vector<int64_t> purge(const PurgeRule& rule) const;
  // Called at the start of a run: removes temporary folders of runs that died. A checkpoint that was moved
  // aside and whose successor was never committed is renamed back. Returns the number of removed folders.
  int clean_leftovers(const FolderLock& lock) const;

 private:
  void remove_checkpoint(const std::filesystem::path& checkpoint, bool purging) const;
  std::filesystem::path folder_;
};

}  // namespace hyperion::checkpoint
