// The folder that holds a run's checkpoints, each in a folder step-N. A checkpoint is visible or absent,
// never partial: it is written under a temporary name, flushed, and renamed.
//
//   step-<N>         a committed checkpoint
//   .incoming-<id>   one that is being written
//   .trash-<id>      one that is being removed
//   .lock            of the run that writes here
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

// Of a folder that a save moved aside where names cannot be exchanged: this, the step, "-", anything.
constexpr std::string_view kReplacedPrefix = ".trash-replaced-";

// N of "step-N": digits without a leading zero, nothing before or after them.
std::optional<int64_t> step_of_name(std::string_view name);

// A folder named step-N.
struct StepFolder {
  int64_t step = 0;
  std::filesystem::path path;
  std::optional<Manifest> manifest{};              // nothing for checkpoints of other programs
  CheckpointKind kind = CheckpointKind::kDamaged;  // the manifest's, where there is one
  std::string why_not{};                           // why it cannot be used; empty when the cheap check passed
  bool complete() const { return why_not.empty(); }
  bool unreadable() const { return kind == CheckpointKind::kUnreadable; }
  // Not complete, although it says that it once was: it has a manifest or an index, of one rank at least.
  // What has neither was never finished, by another program.
  bool damaged() const;
  // Complete, and a job can resume from it: it holds the full state, or the initial weights.
  bool resumable() const { return complete() && manifest && kind != CheckpointKind::kModel; }
};

// Manifest, its step, the names and sizes of all files; no content is read.
StepFolder cheap_check(const std::filesystem::path& folder, int64_t step);
// Files in the folder that its manifest does not list: they are ignored, and named in a note.
std::vector<std::string> extra_files(const std::filesystem::path& folder, const Manifest& manifest);

// Which checkpoints are kept. Those of other programs and those that are not complete are neither counted nor
// removed; a seed is kept. Of the others, the newest `keep` are kept (all for 0), the newest one with the
// full state, and `newest`, which counts as the newest one whatever its number. A pre-checkpoint does not
// count, and is removed when a full one with a higher step exists.
struct PurgeRule {
  int64_t keep = 0;
  int64_t newest = -1;  // the step that was just saved, or -1
};
// The steps to remove, ascending. No I/O, no collectives.
std::vector<int64_t> steps_to_purge(const std::vector<StepFolder>& found, const PurgeRule& rule);

// Failures of a save are Error(kSaveFailed) with path and errno. One thread at a time.
class CheckpointFolder {
 public:
  explicit CheckpointFolder(std::filesystem::path folder) : folder_(std::move(folder)) {}
  const std::filesystem::path& path() const { return folder_; }
  std::filesystem::path step_path(int64_t step) const;
  std::filesystem::path incoming(const std::string& save_id) const;

  // All folders named step-N, by step; symbolic links and files are passed over. Empty when the folder does
  // not exist. Needs no lock.
  std::vector<StepFolder> scan() const;

  // Makes incoming(save_id), by every rank of the save; the coordinator makes its name durable.
  std::filesystem::path begin(const std::string& save_id, bool coordinator) const;
  // By the coordinator, when every file in `incoming` is on disk: flushes the folder, gives it the name
  // step-N and flushes that. A folder that had the name is exchanged and removed; on failure it keeps it.
  void commit(const std::filesystem::path& incoming, int64_t step) const;
  // Removes what a failed save left behind. Failures are warnings.
  void abandon(const std::filesystem::path& incoming) const noexcept;
  // Removes a checkpoint: renames it to a temporary name, then deletes its files. Failures are warnings.
  void discard(const std::filesystem::path& checkpoint) const noexcept;
  // Before a run that may save any step from `first` to `last`: throws Error(kPreCheckpoint) when one of
  // those names belongs to a file or a link.
  void require_free_names(int64_t first, int64_t last) const;
  // Removes what `rule` does not keep and returns those steps. Failures are warnings.
  std::vector<int64_t> purge(const PurgeRule& rule) const;
  // At the start of a run: removes what runs that died left under temporary names. A checkpoint that was
  // moved aside and whose successor was never committed is renamed back. Returns how many were removed.
  int clean_leftovers(const FolderLock& lock) const;

 private:
  void remove_checkpoint(const std::filesystem::path& checkpoint, bool purging) const;
  std::filesystem::path folder_;
};

}  // namespace hyperion::checkpoint
