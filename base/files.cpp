#include "base/files.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/printable.h"
#include "base/resources.h"
#include "base/substitute.h"

namespace hyperion {
namespace fs = std::filesystem;
namespace {

constexpr int kReadFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;

[[noreturn]] void refuse_kind(const fs::path& path, mode_t mode, ExitCode code = ExitCode::kBadData) {
  throw Error(code, fmt::format("{}: is {}, not a regular file", printable(path), kind_of_file(mode)));
}

[[noreturn]] void fail(const fs::path& path, std::string_view what, int error, ExitCode code,
                       std::string_view why = "") {
  if (const auto resource = exhausted_resource(std::system_error(error, std::generic_category()));
      resource && resource->kind == ExhaustedResource::Kind::kFiles)
    throw Error(ExitCode::kResources, fmt::format("{}: {}: {}", printable(path), what, resource->what));
  const std::string text = fmt::format("{}: {}: {}{}", printable(path), what, errno_text(error), why);
  if (error == EACCES || error == EPERM) throw PermissionDenied(code, text);
  throw Error(code, text);
}

[[noreturn]] void fail_open(const fs::path& path, int error, Links links) {
  struct stat info {};
  if (error == ENXIO && ::stat(path.c_str(), &info) == 0) refuse_kind(path, info.st_mode);
  fail(path, "cannot open", error, ExitCode::kBadData,
       error != ELOOP            ? ""
       : links == Links::kRefuse ? ": links are not followed here"
                                 : ": the link leads to itself");
}

// The file type of the entry; nullopt if there is none.
std::optional<mode_t> mode_of(const fs::path& path, Links links, ExitCode code) {
  struct stat info {};
  const int result = links == Links::kFollow ? ::stat(path.c_str(), &info) : ::lstat(path.c_str(), &info);
  if (result == 0) return info.st_mode;
  if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
  fail(path, "cannot be read", errno, code, errno == ELOOP ? ": the link leads to itself" : "");
}

struct stat stat_of(int fd, const fs::path& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) throw_data("{}: cannot be examined: {}", printable(path), errno_text(errno));
  return info;
}

// Reads until `bytes` have arrived or the file ends; returns the number read.
size_t read_at(int fd, const fs::path& path, uint64_t offset, char* out, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t n = ::pread(fd, out + done, bytes - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_data("{}: read failed: {}", printable(path), errno_text(errno));
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

void refuse_substitute(const fs::path& path, std::string_view content) {
  if (const std::string what = substitute_of(content.substr(0, kSubstituteBytes)); !what.empty())
    throw_data("{}: {}", printable(path), what);
}

void write_all(int fd, const fs::path& path, std::string_view content) {
  while (!content.empty()) {
    const ssize_t n = ::write(fd, content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_save_failed("{}: write failed: {}", printable(path), errno_text(errno));
    content.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace

const char* kind_of_file(mode_t mode) {
  constexpr std::pair<mode_t, const char*> kKinds[] = {
      {S_IFREG, "a regular file"}, {S_IFDIR, "a folder"}, {S_IFIFO, "a named pipe"},   {S_IFSOCK, "a socket"},
      {S_IFCHR, "a device"},       {S_IFBLK, "a device"}, {S_IFLNK, "a symbolic link"}};
  for (const auto& [type, kind] : kKinds)
    if ((mode & S_IFMT) == type) return kind;
  return "no file that can be read";
}

bool path_exists(const fs::path& path, ExitCode code) {
  return mode_of(path, Links::kFollow, code).has_value();
}

bool name_exists(const fs::path& path, ExitCode code) {
  return mode_of(path, Links::kRefuse, code).has_value();
}

bool regular_file_exists(const fs::path& path, ExitCode code) {
  const std::optional<mode_t> mode = mode_of(path, Links::kRefuse, code);
  if (mode && !S_ISREG(*mode)) refuse_kind(path, *mode, code);
  return mode.has_value();
}

bool is_folder(const fs::path& path, ExitCode code) {
  const std::optional<mode_t> mode = mode_of(path, Links::kFollow, code);
  return mode && S_ISDIR(*mode);
}

std::vector<fs::path> list_folder(const fs::path& folder, ExitCode code) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    entries.push_back(it->path());
  if (error) fail(folder, "cannot be listed", error.value(), code);
  std::sort(entries.begin(), entries.end());
  return entries;
}

void require_place_for_file(const fs::path& path) {
  const std::optional<mode_t> mode = mode_of(path, Links::kRefuse, ExitCode::kPreCheckpoint);
  if (mode && !S_ISREG(*mode))
    throw_pre_checkpoint("{}: is {}, so that nothing can be written there; move it away", printable(path),
                         kind_of_file(*mode));
}

void require_place_for_folder(const fs::path& path) {
  for (fs::path at = path; !at.empty(); at = at.parent_path()) {
    if (is_folder(at, ExitCode::kPreCheckpoint)) return;
    const std::optional<mode_t> mode = mode_of(at, Links::kRefuse, ExitCode::kPreCheckpoint);
    if (mode)
      throw_pre_checkpoint("{}: is {}{}, so that nothing can be written there; move it away", printable(at),
                           kind_of_file(*mode),
                           S_ISLNK(*mode) ? " that leads to no folder" : ", not a folder");
  }
}

uint64_t regular_size(int fd, const fs::path& path) {
  const struct stat info = stat_of(fd, path);
  if (!S_ISREG(info.st_mode)) refuse_kind(path, info.st_mode);
  return static_cast<uint64_t>(info.st_size);
}

InputFile::InputFile(const fs::path& path, Links links)
    : path_(path), file_(::open(path.c_str(), kReadFlags | (links == Links::kRefuse ? O_NOFOLLOW : 0))) {
  if (!file_) fail_open(path, errno, links);
  size_ = regular_size(file_.get(), path);
}

void InputFile::read(uint64_t offset, void* out, size_t bytes) const {
  const size_t done = read_at(file_.get(), path_, offset, static_cast<char*>(out), bytes);
  if (done < bytes)
    throw_data("{}: ends at byte {}, but it had {} bytes when it was opened: it became shorter meanwhile",
               printable(path_), offset + done, size_);
}

std::string read_file(const fs::path& path, size_t limit, Links links) {
  const InputFile file(path, links);
  if (file.size() > limit)
    throw_data("{}: is {} bytes, at most {} are accepted", printable(path), file.size(), limit);
  std::string content(file.size(), '\0');
  file.read(0, content.data(), content.size());
  refuse_substitute(path, content);
  return content;
}

std::string read_file_or_pipe(const fs::path& path, size_t limit, int timeout_seconds) {
  const Descriptor file(::open(path.c_str(), kReadFlags));
  if (!file) fail_open(path, errno, Links::kFollow);
  const mode_t mode = stat_of(file.get(), path).st_mode;
  if (S_ISREG(mode)) return read_file(path, limit);
  if (!S_ISFIFO(mode) && !S_ISCHR(mode)) refuse_kind(path, mode);
  std::string content;
  char part[1 << 16];
  while (true) {
    pollfd wait = {file.get(), POLLIN, 0};
    const int ready = ::poll(&wait, 1, timeout_seconds * 1000);
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0)
      throw_data("{}: is {}, and nothing came from it for {} s: start what writes into it, or name a file",
                 printable(path), kind_of_file(mode), timeout_seconds);
    const ssize_t n = ::read(file.get(), part, sizeof part);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n < 0) throw_data("{}: read failed: {}", printable(path), errno_text(errno));
    if (n == 0) {
      refuse_substitute(path, content);
      return content;
    }
    content.append(part, static_cast<size_t>(n));
    if (content.size() > limit)
      throw_data("{}: gives more than {} bytes, at most these are accepted", printable(path), limit);
  }
}

Descriptor create_new_file(const fs::path& path) {
  ::unlink(path.c_str());
  return Descriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
}

void write_file_atomic(const fs::path& path, std::string_view content) {
  fs::path temporary = path;
  temporary += ".tmp." + std::to_string(::getpid());
  const auto fail = [&](std::string_view what, int error) {  // names the path that the caller knows
    throw_save_failed("{}: {}: {}", printable(path), what, errno_text(error));
  };
  const Descriptor file = create_new_file(temporary);
  if (!file && errno == EEXIST) fail(fmt::format("{} is in its way", printable(temporary)), EEXIST);
  if (!file) fail("cannot be made", errno);
  try {
    write_all(file.get(), path, content);
    if (::fsync(file.get()) != 0) fail("fsync failed", errno);
    if (::rename(temporary.c_str(), path.c_str()) != 0)
      fail(fmt::format("{} cannot be renamed to it", printable(temporary)), errno);
  } catch (const Error&) {
    ::unlink(temporary.c_str());
    throw;
  }
}

}  // namespace hyperion
