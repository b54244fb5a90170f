// Makes files survive a power cut: descriptors that close themselves, folders that are synced, and an
// observer of these steps, so that a test can check their order.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace hyperion {

// Owns a file descriptor.
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

// Returns whether `path` still names the file `open`: a previous holder of its lock may have removed or
// renamed it.
bool is_same_file(const std::filesystem::path& path, const Descriptor& open);

std::string errno_text(int number);  // "No space left on device (ENOSPC)"

// The steps below throw Error(kSaveFailed) naming the path and the errno.
void sync_folder(const std::filesystem::path& folder);
// Creates the folder and its missing parents, durably. An existing folder is fine.
void make_folders(const std::filesystem::path& folder);
// Renames within one file system. kNoReplace fails if `to` exists. kExchange swaps two existing entries.
// Returns 0 or the errno; EINVAL or ENOSYS if the file system does not support the mode.
enum class RenameMode { kReplace, kNoReplace, kExchange };
int rename_entry(const std::filesystem::path& from, const std::filesystem::path& to, RenameMode mode);

// For tests: the observer is called with every step that succeeded: ("create" | "fsync" | "rename" |
// "exchange" | "mkdir" | "unlink", path). Set it while no other thread writes; an empty function removes
// it.
using DurableObserver = std::function<void(std::string_view step, const std::filesystem::path& path)>;
void observe_durable_steps(DurableObserver observer);
void durable_step(std::string_view step, const std::filesystem::path& path);

// Makes a write beyond RLIMIT_FSIZE fail with EFBIG instead of ending the process. main() calls it.
void ignore_file_size_signal();

}  // namespace hyperion
