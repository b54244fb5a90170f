// Reading files that come from outside, and replacing files atomically.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "base/durable.h"
#include "base/error.h"

namespace hyperion {

// Whether the last part of a path may be a symbolic link.
enum class Links { kRefuse, kFollow };

// The system does not permit examining or opening a path (EACCES, EPERM): that says nothing about its
// content.
class PermissionDenied : public Error {
 public:
  using Error::Error;
};

// Queries of paths that come from outside, instead of those of std::filesystem, whose exceptions would count
// as bugs. Each throws an Error of `code` (PermissionDenied where that is the cause) that names path and
// errno when the system gives no answer: a link leads to itself, a folder may not be searched.
//
// Whether there is a file, folder or anything else; false for a dangling link.
bool path_exists(const std::filesystem::path& path, ExitCode code = ExitCode::kBadData);
// Whether the name exists, also as a dangling link: opening it then reports what is wrong.
bool name_exists(const std::filesystem::path& path, ExitCode code = ExitCode::kBadData);
// Whether there is a regular file. Throws when the name belongs to something else, a link included.
bool regular_file_exists(const std::filesystem::path& path, ExitCode code = ExitCode::kBadData);
// Whether there is a folder, or a link to one.
bool is_folder(const std::filesystem::path& path, ExitCode code = ExitCode::kBadData);
// What is in a folder, sorted.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder,
                                              ExitCode code = ExitCode::kBadData);

// "a named pipe", of stat's st_mode.
const char* kind_of_file(mode_t mode);

// Before a job writes: the first throws Error(kPreCheckpoint) when the path exists and is not a regular file,
// the second when the path, or a parent, exists and is not a folder. Nothing is created.
void require_place_for_file(const std::filesystem::path& path);
void require_place_for_folder(const std::filesystem::path& path);

// The size of an open regular file. Throws Error(kBadData) that says what else it is ("is a named pipe, not a
// regular file").
uint64_t regular_size(int fd, const std::filesystem::path& path);

// A regular file, read in pieces. Every file that comes from outside is opened here (or with openat2 and then
// passed to regular_size()): opening never waits, as a named pipe without a writer would make it. Nothing is
// mapped: a file that becomes shorter while it is read is an error, not a SIGBUS. Reads may come from several
// threads. Throws Error(kBadData) naming the path.
class InputFile {
 public:
  InputFile() = default;
  explicit InputFile(const std::filesystem::path& path, Links links = Links::kFollow);

  uint64_t size() const { return size_; }  // when it was opened
  const std::filesystem::path& path() const { return path_; }
  void read(uint64_t offset, void* out, size_t bytes) const;
  Descriptor release() { return std::move(file_); }

 private:
  std::filesystem::path path_;
  Descriptor file_;
  uint64_t size_ = 0;
};

// All of a file. Throws Error(kBadData) naming the path and errno; `limit` bytes at most (default 1 GiB).
std::string read_file(const std::filesystem::path& path, size_t limit = size_t{1} << 30,
                      Links links = Links::kFollow);

// The same for a file, and also what a pipe or a terminal gives until it ends; an error when nothing comes
// for `timeout_seconds`. What a pipe gave cannot be read again.
std::string read_file_or_pipe(const std::filesystem::path& path, size_t limit, int timeout_seconds = 30);

// Writes to a temporary name in the folder of `path`, flushes to disk, renames. A reader sees the old or the
// new content. A link under either name is replaced, never followed.
void write_file_atomic(const std::filesystem::path& path, std::string_view content);

// Makes a new file for writing; a file or link left under this name is removed first, and one that appears in
// between is an error. Returns an empty descriptor, and sets errno, when it cannot be created.
Descriptor create_new_file(const std::filesystem::path& path);

}  // namespace hyperion
