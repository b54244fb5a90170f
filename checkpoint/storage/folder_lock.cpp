#include "checkpoint/storage/folder_lock.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <fstream>

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/process.h"

namespace hyperion::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr const char* kLockFile = ".lock";
constexpr size_t kMaxLockBytes = 4096;

// Field 22 of /proc/PID/stat; 0 if there is no such process. The second field is a name in parentheses,
// which may contain anything.
int64_t start_ticks_of(int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  size_t at = line.rfind(')');
  for (int field = 2; field < 22 && at != line.npos; ++field) at = line.find(' ', at + 1);
  return at == line.npos ? 0 : std::atoll(line.c_str() + at);
}

bool is_running(const LockOwner& owner) {
  return owner.start_ticks != 0 && start_ticks_of(owner.pid) == owner.start_ticks;
}

// Lustre, BeeGFS, GPFS, SMB and FUSE file systems may limit flock() to one host, depending on how they are
// mounted. Local disks have one host; NFS and Ceph forward locks to the server.
bool locks_reach_other_hosts(int fd) {
  constexpr std::array<uint32_t, 6> kMayNot = {0x0bd00bd0, 0x19830326, 0x47504653,
                                               0xff534d42, 0xfe534d42, 0x65735546};
  struct statfs info {};
  if (::fstatfs(fd, &info) != 0) return false;
  return std::ranges::find(kMayNot, static_cast<uint32_t>(info.f_type)) == kMayNot.end();
}

std::string read_small(int fd) {
  std::string text(kMaxLockBytes, '\0');
  const ssize_t n = ::pread(fd, text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
  return text;
}

// The folders that make_folders() would create, the deepest first.
std::vector<fs::path> missing_folders(const fs::path& folder) {
  std::vector<fs::path> missing;
  std::error_code ignored;
  for (fs::path at = fs::absolute(folder).lexically_normal();
       at.has_relative_path() && !fs::exists(at, ignored); at = at.parent_path())
    if (at.has_filename()) missing.push_back(at);
  return missing;
}

bool holds_nothing_else(const fs::path& folder, const fs::path& file) {
  std::error_code error;
  const fs::directory_iterator entries(folder, error);
  return !error && std::all_of(begin(entries), end(entries),
                               [&](const fs::directory_entry& entry) { return entry.path() == file; });
}

std::string describe(const LockOwner& owner) {
  return fmt::format("process {} on host {:.200} (since {:%Y-%m-%d %H:%M:%S} UTC)", owner.pid, owner.host,
                     fmt::gmtime(static_cast<std::time_t>(owner.unix_time)));
}

}  // namespace

LockOwner this_process() {
  LockOwner self;
  self.host = host_name();
  self.pid = ::getpid();
  self.unix_time = std::time(nullptr);
  self.start_ticks = start_ticks_of(self.pid);
  std::ifstream("/proc/sys/kernel/random/boot_id") >> self.boot_id;
  const char* job = std::getenv("SLURM_JOB_ID");
  if (job != nullptr) self.job = job;
  return self;
}

std::string to_json(const LockOwner& owner) {
  const nlohmann::json json = {{"host", owner.host},           {"pid", owner.pid},
                               {"unix_time", owner.unix_time}, {"start_ticks", owner.start_ticks},
                               {"boot_id", owner.boot_id},     {"job", owner.job}};
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::optional<LockOwner> lock_owner_from_json(std::string_view text) try {
  const nlohmann::json json = parse_json(text, kLockFile);
  const JsonNode root(json, kLockFile);
  const auto number = [&](const char* key) {
    return static_cast<int64_t>(root[key].count(0, uint64_t{1} << 37));  // dates with four-digit years
  };
  return LockOwner{root["host"].text(),   number("pid"),          number("unix_time"),
                   number("start_ticks"), root["boot_id"].text(), root["job"].text()};
} catch (const Error&) {
  return std::nullopt;
}

std::string why_not_stale(const LockOwner& owner, const LockOwner& self, bool owner_runs,
                          bool locks_reach_other_hosts) {
  if (owner.host == self.host && owner.boot_id != self.boot_id) return {};  // the host has rebooted
  if (owner.host == self.host) return owner_runs ? "that process runs" : "";
  if (!owner.job.empty() && owner.job == self.job)
    return {};  // the batch system ended the owner before starting this process
  if (locks_reach_other_hosts) return {};
  return "this file system does not tell whether a process on another host holds a lock";
}

FolderLock::FolderLock(const fs::path& folder) : folder_(folder), created_folders_(missing_folders(folder)) {
  make_folders(folder);
  const fs::path path = folder / kLockFile;
  std::error_code ignored;
  created_file_ = !fs::exists(fs::symlink_status(path, ignored));
  file_ = Descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
  if (!file_)
    throw_save_failed("{}: the folder's lock cannot be made: {}", printable(path), errno_text(errno));
  const bool locked = ::flock(file_.get(), LOCK_EX | LOCK_NB) == 0;
  const int error = errno;
  const std::optional<LockOwner> owner = lock_owner_from_json(read_small(file_.get()));
  if (!locked && error != EWOULDBLOCK) {
    log_warning("{}: this file system knows no locks ({}): that no other run writes here is not checked",
                printable(path), errno_text(error));
  } else if (!locked) {
    throw_config(
        "{}: another run writes checkpoints here: {}; stop it, or give this run another checkpoint folder",
        printable(folder), owner ? describe(*owner) : "a process that has not yet said which");
  }
  if (locked && !is_same_file(path, file_))
    throw_config("{}: another run that wrote checkpoints here ended at this moment: start again",
                 printable(folder));
  folder_descriptor_ = Descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder_descriptor_ && ::flock(folder_descriptor_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw_config(
        "{}: another run writes checkpoints here: it holds the folder, and the {} that named it was removed; "
        "stop that run, or give this one another checkpoint folder",
        printable(folder), kLockFile);
  const LockOwner self = this_process();
  if (owner) {
    const std::string doubt =
        why_not_stale(*owner, self, is_running(*owner), locks_reach_other_hosts(file_.get()));
    if (!doubt.empty())
      throw_config("{}: {} was writing checkpoints here, and {}; if it is gone, remove {} and start again",
                   printable(folder), describe(*owner), doubt, printable(path));
    log_info("{}: {} ended without giving up the folder; this run takes it over", printable(folder),
             describe(*owner));
  }
  const std::string text = to_json(self);
  if (::ftruncate(file_.get(), 0) != 0 || ::pwrite(file_.get(), text.data(), text.size(), 0) < 0)
    throw_save_failed("{}: the folder's lock cannot be written: {}", printable(path), errno_text(errno));
}

FolderLock::~FolderLock() {
  if (file_ && created_file_ && holds_nothing_else(folder_, folder_ / kLockFile)) {
    ::unlink((folder_ / kLockFile).c_str());
    file_ = Descriptor();
    for (const fs::path& folder : created_folders_)
      if (::rmdir(folder.c_str()) != 0) break;  // the folder is not empty
    return;
  }
  if (file_ && ::ftruncate(file_.get(), 0) != 0)  // an owner that ended normally leaves no record
    log_warning("{}: the folder's lock cannot be cleared: {}", printable(folder_), errno_text(errno));
}

}  // namespace hyperion::checkpoint
