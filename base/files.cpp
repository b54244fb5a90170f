#include "base/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/resources.h"

namespace hyperion {
namespace {

class Descriptor {
 public:
  Descriptor(const std::filesystem::path& path, int flags, mode_t mode = 0)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC, mode)) {
    if (fd_ < 0) throw_data("{}: cannot open: {}", path.string(), std::strerror(errno));
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

size_t regular_size(int fd, const std::filesystem::path& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) throw_data("{}: cannot stat: {}", path.string(), std::strerror(errno));
  if (!S_ISREG(info.st_mode)) throw_data("{}: is not a regular file", path.string());
  return static_cast<size_t>(info.st_size);
}

}  // namespace

std::string read_file(const std::filesystem::path& path, size_t limit) {
  Descriptor file(path, O_RDONLY);
  const size_t size = regular_size(file.get(), path);
  if (size > limit) throw_data("{}: is {} bytes, at most {} are accepted", path.string(), size, limit);
  std::string content(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::read(file.get(), content.data() + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_data("{}: read failed: {}", path.string(), std::strerror(errno));
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  content.resize(done);
  return content;
}

void write_file_atomic(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::path temporary = path;
  temporary += ".tmp." + std::to_string(::getpid());
  try {
    Descriptor file(temporary, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    size_t done = 0;
    while (done < content.size()) {
      const ssize_t n = ::write(file.get(), content.data() + done, content.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw_data("{}: write failed: {}", temporary.string(), std::strerror(errno));
      done += static_cast<size_t>(n);
    }
    if (::fsync(file.get()) != 0)
      throw_data("{}: fsync failed: {}", temporary.string(), std::strerror(errno));
    if (::rename(temporary.c_str(), path.c_str()) != 0)
      throw_data("{}: cannot rename to {}: {}", temporary.string(), path.string(), std::strerror(errno));
  } catch (const Error& error) {  // reading and writing fail in the same words, but not with the same code
    ::unlink(temporary.c_str());
    throw Error(ExitCode::kSaveFailed, error.what());
  }
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  Descriptor file(path, O_RDONLY);
  size_ = regular_size(file.get(), path);
  if (size_ == 0) return;
  data_ = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.get(), 0);
  if (data_ == MAP_FAILED) {
    data_ = nullptr;
    if (errno == ENOMEM)
      throw Error(kResources,
                  fmt::format("{}: cannot map {} bytes: memory ran out; give the process more, or "
                              "raise its limit (ulimit -v)",
                              path.string(), size_));
    throw_data("{}: cannot map {} bytes: {}", path.string(), size_, std::strerror(errno));
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace hyperion
