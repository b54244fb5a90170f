// Reads files that come from outside, and replaces files atomically.
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

// The choice to accept or refuse a symbolic link as the last component of a path.
enum class Links { kRefuse, kFollow };

// The system does not permit examining or opening a path (EACCES, EPERM), which says nothing about its
// content.
class PermissionDenied : public Error {
 public:
  using Error::Error;
};

// Queries of outside paths. They replace std::filesystem's, whose exceptions would count as bugs. Each
// throws an Error of `code` (PermissionDenied if that is the cause) naming path and errno if the system
// gives no answer: a link loop, a folder that may not be searched.
//
// Returns whether there is a file, folder or anything else; false for a dangling link.
bool path_exists(const std::filesystem::path& path, ExitCode code = ExitCode::kBadData);
// Returns whether the name exists, even as a dangling link: opening it then reports what is wrong.
bool name_exists(const std::filesystem::path& path, ExitCode code = ExitCode::kBadData);
// Returns whether there is a regular file. Throws if the name belongs to something else, including a link.
bool regular_file_exists(const std::filesystem::path& path, ExitCode code = ExitCode::kBadData);
// Returns whether there is a folder, or a link to one.
bool is_folder(const std::filesystem::path& path, ExitCode code = ExitCode::kBadData);
// The entries of a folder, sorted.
std::vector<std::filesystem::path> list_folder(const std::filesystem::path& folder,
                                               ExitCode code = ExitCode::kBadData);

// "a named pipe", from stat's st_mode.
const char* kind_of_file(mode_t mode);

// Checks before a job writes: the first throws Error(kPreCheckpoint) if the path exists and is not a
// regular file, the second if the path, or a parent, exists and is not a folder. Nothing is created.
void require_place_for_file(const std::filesystem::path& path);
void require_place_for_folder(const std::filesystem::path& path);

// The size of an open regular file. Throws Error(kBadData) naming what else it is ("is a named pipe, not a
// regular file").
uint64_t regular_size(int fd, const std::filesystem::path& path);

// An InputFile is a regular file, read in pieces. Every outside file is opened here (or with openat2 and
// then passed to regular_size()): opening never blocks, as a named pipe without a writer would. Nothing is
// mapped: a file that shrinks while it is read is an error, not a SIGBUS. read() is thread-safe. Throws
// Error(kBadData) naming the path.
class InputFile {
 public:
  InputFile() = default;
  explicit InputFile(const std::filesystem::path& path, Links links = Links::kFollow);

  uint64_t size() const { return size_; }  // size when it was opened
  const std::filesystem::path& path() const { return path_; }
  void read(uint64_t offset, void* out, size_t bytes) const;
  Descriptor release() { return std::move(file_); }

 private:
  std::filesystem::path path_;
  Descriptor file_;
  uint64_t size_ = 0;
};

// Returns the content of a file, of at most `limit` bytes (default 1 GiB). Throws Error(kBadData) naming
// path and errno.
std::string read_file(const std::filesystem::path& path, size_t limit = size_t{1} << 30,
                      Links links = Links::kFollow);

// Reads a file, a pipe or a terminal until it ends, as read_file(). Throws too if nothing arrives for
// `timeout_seconds`. A pipe cannot be read a second time.
std::string read_file_or_pipe(const std::filesystem::path& path, size_t limit, int timeout_seconds = 30);

// Writes to a temporary name in the folder of `path`, flushes to disk, renames. A reader sees the old or
// the new content. A link under either name is replaced, never followed.
void write_file_atomic(const std::filesystem::path& path, std::string_view content);

// Creates a new file for writing. A file or link left under this name is removed first; one that appears in
// between is an error. Returns an empty descriptor and sets errno if it cannot be created.
Descriptor create_new_file(const std::filesystem::path& path);

}  // namespace hyperion
