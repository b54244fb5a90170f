// The plain ways to write and read a file, which checkpoints are compared with.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/durable.h"
#include "base/error.h"

namespace hyperion::checkpoint {

constexpr uint64_t kTransfer = uint64_t{8} << 20;  // of one read or write

[[noreturn]] inline void fail_on(const char* what, const std::filesystem::path& path) {
  throw Error(ExitCode::kSaveFailed, fmt::format("{} {}: {}", what, path.string(), errno_text(errno)));
}

enum class Way { kBuffered, kDirect };

inline void raw_write(const std::filesystem::path& path, const std::byte* data, uint64_t bytes, Way way) {
  const Descriptor file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | (way == Way::kDirect ? O_DIRECT : 0), 0666));
  if (!file) fail_on("open", path);
  for (uint64_t at = 0; at < bytes; at += kTransfer) {
    const uint64_t n = std::min(kTransfer, bytes - at);
    if (::write(file.get(), data + at, n) != static_cast<ssize_t>(n)) fail_on("write", path);
  }
  if (::fsync(file.get()) != 0) fail_on("fsync", path);
}

// Returns the bytes of the file.
inline uint64_t raw_read(const std::filesystem::path& path, std::byte* out, Way way) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | (way == Way::kDirect ? O_DIRECT : 0)));
  if (!file) fail_on("open", path);
  if (way == Way::kBuffered) ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  for (uint64_t at = 0;;) {
    const ssize_t n = ::read(file.get(), out + at, kTransfer);
    if (n < 0) fail_on("read", path);
    at += static_cast<uint64_t>(n);
    if (n < static_cast<ssize_t>(kTransfer)) return at;
  }
}

}  // namespace hyperion::checkpoint
