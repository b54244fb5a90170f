// One run at a time writes checkpoints into a folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/durable.h"

namespace hyperion::checkpoint {

// Who holds, or held, the lock.
struct LockOwner {
  std::string host;
  int64_t pid = 0;
  int64_t unix_time = 0;    // when it took the lock
  int64_t start_ticks = 0;  // when the process began, since boot: tells it from a later one with its number
  std::string boot_id;
  std::string job;  // of the batch system; empty outside of one
  bool operator==(const LockOwner&) const = default;
};
LockOwner this_process();
std::string to_json(const LockOwner& owner);
std::optional<LockOwner> lock_owner_from_json(std::string_view text);  // nothing for any other text

// The file names an owner, but no process holds its lock: did the owner die? Returns why that is not certain,
// or an empty text. `locks_reach_other_hosts`: what flock() says holds for every host of this file system.
std::string why_not_stale(const LockOwner& owner, const LockOwner& self, bool owner_runs,
                          bool locks_reach_other_hosts);

// The lock of a folder, a flock() on its file .lock, which names the owner, and one on the folder itself,
// which holds when somebody removes the file (not on NFS, where folders have none). It ends with the process
// however that ends; an owner that died is replaced. Readers need no lock. The destructor removes the file
// and the folders that the constructor made, if nothing else is in them.
class FolderLock {
 public:
  // Makes the folder if need be. Throws Error(kUsage) naming host, process and start of the run that holds
  // the folder, with the remedy; Error(kSaveFailed) when the file cannot be made.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(FolderLock&&) = default;
  FolderLock& operator=(FolderLock&&) = delete;
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  std::vector<std::filesystem::path> made_;  // folders, the deepest first
  bool made_file_ = false;
  Descriptor file_, folder_itself_;
};

}  // namespace hyperion::checkpoint
