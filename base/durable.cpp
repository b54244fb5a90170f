#include "base/durable.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/failpoint.h"
#include "base/printable.h"

namespace hyperion {
namespace fs = std::filesystem;
namespace {

std::atomic<bool> observed{false};
std::mutex mutex;
DurableObserver observer;  // guarded by mutex

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

bool is_same_file(const fs::path& path, const Descriptor& open) {
  struct stat there = {};
  struct stat here = {};
  return ::stat(path.c_str(), &there) == 0 && ::fstat(open.get(), &here) == 0 &&
         there.st_dev == here.st_dev && there.st_ino == here.st_ino;
}

std::string errno_text(int number) {
  const char* name = ::strerrorname_np(number);
  return fmt::format("{} ({})", std::strerror(number), name == nullptr ? fmt::to_string(number) : name);
}

void sync_folder(const fs::path& folder) {
  const Descriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  int error = fd ? failpoint("file.fsync", folder.native()).error_number : errno;
  if (error == 0 && ::fsync(fd.get()) != 0) error = errno;
  if (error != 0)
    throw_save_failed("{}: the folder cannot be flushed to disk: {}", printable(folder), errno_text(error));
  durable_step("fsync", folder);
}

namespace {

// With `parents` it creates missing parents and tries once more; some folders (of /proc) exist and accept
// no entry.
void make_folder(const fs::path& folder, bool parents) {
  if (::mkdir(folder.c_str(), 0777) == 0) {
    durable_step("mkdir", folder);
    const fs::path parent = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
    return sync_folder(parent);
  }
  const int error = errno;
  std::error_code ignored;
  if (error == EEXIST && fs::is_directory(folder, ignored)) return;
  if (error == ENOENT && parents && folder.has_parent_path() && folder.parent_path() != folder &&
      !fs::is_symlink(folder, ignored)) {
    make_folder(folder.parent_path(), true);
    return make_folder(folder.has_filename() ? folder : folder.parent_path(), false);
  }
  const char* why = error != EEXIST                   ? ""
                    : fs::is_symlink(folder, ignored) ? ": it is a symbolic link that leads nowhere"
                                                      : ": it is not a folder";
  throw_save_failed("{}: the folder cannot be made{}: {}; name another one or see to its permissions",
                    printable(folder), why, errno_text(error));
}

}  // namespace

void make_folders(const fs::path& folder) {
  make_folder(folder, true);
}

int rename_entry(const fs::path& from, const fs::path& to, RenameMode mode) {
  if (const int error = failpoint("file.rename", to.native()).error_number; error != 0) return error;
  constexpr unsigned kFlags[] = {0, RENAME_NOREPLACE, RENAME_EXCHANGE};
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), kFlags[static_cast<int>(mode)]) != 0)
    return errno;
  durable_step(mode == RenameMode::kExchange ? "exchange" : "rename", to);
  return 0;
}

void observe_durable_steps(DurableObserver new_observer) {
  const std::lock_guard lock(mutex);
  observer = std::move(new_observer);
  observed = static_cast<bool>(observer);
}

void durable_step(std::string_view step, const fs::path& path) {
  if (!observed.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex);
  if (observer) observer(step, path);
}

void ignore_file_size_signal() {
  std::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace hyperion
