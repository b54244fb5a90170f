// What it takes that files outlive a power cut: descriptors that close themselves, folders that are synced,
// and a log of those steps, so that a test can check their order.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace hyperion {

// Owns an open file.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Whether `path` is the file that is open: one that held its lock before may have removed or renamed it.
bool is_file_of(const std::filesystem::path& path, const Descriptor& open);

std::string errno_text(int number);  // "No space left on device (ENOSPC)"

// The steps below throw Error(kSaveFailed) naming the path and the errno.
void sync_folder(const std::filesystem::path& folder);
// Makes the folder and those above it that are missing, durably. An existing one is fine.
void make_folders(const std::filesystem::path& folder);
// Within one file system. kNoReplace: fails when `to` exists. kExchange: both exist and change places.
// Returns 0 or the errno; EINVAL or ENOSYS where the file system cannot do it.
enum class RenameMode { kReplace, kNoReplace, kExchange };
int rename_entry(const std::filesystem::path& from, const std::filesystem::path& to, RenameMode mode);

// For tests: called with every step that succeeded: ("create" | "fsync" | "rename" | "exchange" | "mkdir" |
// "unlink", path). Set it while no other thread writes; an empty function ends it.
using DurableObserver = std::function<void(std::string_view step, const std::filesystem::path& path)>;
void observe_durable_steps(DurableObserver observer);
void durable_step(std::string_view step, const std::filesystem::path& path);

// A file that outgrows RLIMIT_FSIZE shall fail with EFBIG instead of ending the process. main() calls it.
void ignore_file_size_signal();

}  // namespace hyperion
