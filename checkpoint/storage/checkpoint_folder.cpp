// Names in the folder, and what is removed from it; commit.cpp makes them.
#include "checkpoint/storage/checkpoint_folder.h"

#include <algorithm>
#include <atomic>
#include <system_error>

#include <unistd.h>

#include "base/durable.h"
#include "base/error.h"
#include "base/failpoint.h"
#include "base/files.h"
#include "base/log.h"
#include "base/printable.h"

namespace hyperion::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kIncoming = ".incoming-", kTrash = ".trash-";

// Removes a folder under a temporary name with everything in it.
void remove_tree(const fs::path& folder, bool purging) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    entries.push_back(it->path());
  for (size_t i = 0; i < entries.size() && !error; ++i) {
    if (purging && i == entries.size() / 2) failpoint("purge.mid", folder.native());
    fs::remove_all(entries[i], error);
  }
  if (!error) fs::remove(folder, error);
  if (error)
    log_warning("{}: cannot be removed: {}; it takes up space until the next start", printable(folder),
                errno_text(error.value()));
  else
    durable_step("unlink", folder);
}

// Unique in this process, so that two removals never collide.
fs::path new_trash(const fs::path& folder) {
  static std::atomic<int> count{0};
  fs::path path;
  do path = folder / fmt::format("{}{}-{}", kTrash, ::getpid(), count++);
  while (name_exists(path));
  return path;
}

// The name that `path` had before commit() moved it aside for a successor that was never committed; empty
// when `path` is anything else.
fs::path name_to_restore(const fs::path& path) {
  const std::string name = path.filename().native();
  if (!name.starts_with(kReplacedPrefix)) return {};
  const std::string step = name.substr(kReplacedPrefix.size());
  const std::string owner = "step-" + step.substr(0, step.find('-'));
  const fs::path to = path.parent_path() / owner;
  return step_of_name(owner) && !name_exists(to) ? to : fs::path();
}

}  // namespace

fs::path CheckpointFolder::step_path(int64_t step) const {
  return folder_ / fmt::format("step-{}", step);
}

fs::path CheckpointFolder::incoming(const std::string& save_id) const {
  // Other programs take every name with step-<digits> in it for a checkpoint.
  const std::string name = std::string(kIncoming) + save_id;
  if (!is_plain_name(name) || save_id.empty() || name.find("step-") != name.npos)
    throw_bug("\"{}\" cannot be the id of a save", save_id);
  return folder_ / name;
}

void CheckpointFolder::remove_checkpoint(const fs::path& checkpoint, bool purging) const {
  const fs::path trash = new_trash(folder_);
  if (const int error = rename_entry(checkpoint, trash, RenameMode::kReplace); error != 0) {
    log_warning("{}: cannot be removed: {}", printable(checkpoint), errno_text(error));
    return;
  }
  sync_folder(folder_);  // the name is gone before the first file is
  remove_tree(trash, purging);
}

void CheckpointFolder::abandon(const fs::path& incoming) const noexcept {
  try {
    if (name_exists(incoming)) remove_tree(incoming, /*purging=*/false);
  } catch (const std::exception& error) {
    log_warning("{}: cannot be removed: {}", printable(incoming), error.what());
  }
}

void CheckpointFolder::discard(const fs::path& checkpoint) const noexcept {
  try {
    remove_checkpoint(checkpoint, /*purging=*/false);
  } catch (const std::exception& error) {
    log_warning("{}: cannot be removed: {}", printable(checkpoint), error.what());
  }
}

std::vector<int64_t> CheckpointFolder::purge(const PurgeRule& rule) const {
  failpoint("purge.before");
  std::vector<int64_t> steps;
  try {
    steps = steps_to_purge(scan(), rule);
    for (const int64_t step : steps) remove_checkpoint(step_path(step), /*purging=*/true);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kBug) throw;
    log_warning("old checkpoints cannot be removed: {}", error.what());
  }
  failpoint("purge.after");
  return steps;
}

int CheckpointFolder::clean_leftovers(const FolderLock& lock) const {
  if (lock.folder() != folder_)
    throw_bug("the lock of {} does not cover {}", printable(lock.folder()), printable(folder_));
  int count = 0;
  std::error_code error, ignored;
  std::vector<fs::path> stale;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().native();
    if ((name.starts_with(kIncoming) || name.starts_with(kTrash)) &&
        fs::is_directory(fs::symlink_status(it->path(), ignored)))
      stale.push_back(it->path());
  }
  for (const fs::path& path : stale) {
    if (const fs::path name = name_to_restore(path); !name.empty()) {
      // The lock keeps others from making it in between; not all file systems know kNoReplace.
      if (const int failure = rename_entry(path, name, RenameMode::kReplace); failure != 0) {
        log_warning("{}: cannot be renamed back to {}: {}", printable(path), name.filename().native(),
                    errno_text(failure));
        continue;
      }
      sync_folder(folder_);
      log_warning("{}: was moved aside by a save that did not finish; it was renamed back", printable(name));
      continue;
    }
    log_info("{}: left by a run that ended in the middle; removed", printable(path));
    remove_tree(path, /*purging=*/false);
    ++count;
  }
  return count;
}

}  // namespace hyperion::checkpoint
