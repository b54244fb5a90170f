// A FolderLock lets only one run at a time write checkpoints into a folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/durable.h"

namespace hyperion::checkpoint {

// The process that holds, or held, the lock.
struct LockOwner {
  std::string host;
  int64_t pid = 0;
  int64_t unix_time = 0;    // when it took the lock
  int64_t start_ticks = 0;  // process start since boot: distinguishes a later process with the same pid
  std::string boot_id;
  std::string job;  // batch system's job id; empty without one
  bool operator==(const LockOwner&) const = default;
};
LockOwner this_process();
std::string to_json(const LockOwner& owner);
std::optional<LockOwner> lock_owner_from_json(std::string_view text);  // nullopt for any other text

// Call if the file names an owner but no process holds its lock: returns why it is uncertain that the owner
// died; empty if it did. `locks_reach_other_hosts` says that flock() works across all hosts of this file
// system.
std::string why_not_stale(const LockOwner& owner, const LockOwner& self, bool owner_runs,
                          bool locks_reach_other_hosts);

// The lock of a folder: a flock() on its file .lock, which names the owner, and one on the folder itself,
// which still holds if somebody removes the file (not on NFS, where folders have none). It ends with the
// process however that ends; a dead owner is replaced. Readers need no lock. The destructor removes the
// file and the folders that the constructor created, if they are otherwise empty.
class FolderLock {
 public:
  // Creates the folder if it is missing. Throws Error(kUsage) naming host, process and start of the run
  // that holds the folder, with the remedy; Error(kSaveFailed) if the file cannot be created.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(FolderLock&&) = default;
  FolderLock& operator=(FolderLock&&) = delete;
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  std::vector<std::filesystem::path> created_folders_;  // the deepest first
  bool created_file_ = false;
  Descriptor file_, folder_descriptor_;
};

}  // namespace hyperion::checkpoint
