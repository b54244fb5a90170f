#include "trainer/report/backward_lines.h"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

namespace hyperion {

BackwardLines::BackwardLines(const std::filesystem::path& path, size_t longest_line, size_t block)
    : path_(path),
      file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)),  // a named pipe shall not wait
      longest_line_(longest_line),
      block_(block) {
  if (!file_) throw_data("{}: cannot open: {}", printable(path), errno_text(errno));
  struct stat info {};
  if (::fstat(file_.get(), &info) != 0) throw_data("{}: cannot stat: {}", printable(path), errno_text(errno));
  if (!S_ISREG(info.st_mode)) throw_data("{}: is not a regular file", printable(path));
  size_ = begin_ = static_cast<uint64_t>(info.st_size);
}

void BackwardLines::read_block_before() {
  const size_t size = std::min<uint64_t>(block_, begin_);
  std::string block(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t n =
        ::pread(file_.get(), block.data() + done, size - done, static_cast<off_t>(begin_ - size + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_data("{}: cannot read: {}", printable(path_), errno_text(errno));
    if (n == 0) throw_data("{}: became shorter while it was read: run the command again", printable(path_));
    done += static_cast<size_t>(n);
  }
  begin_ -= size;
  buffer_.resize(end_);
  buffer_.insert(0, block);
  end_ += size;
}

std::optional<BackwardLines::Line> BackwardLines::next() {
  Line line;
  while (true) {
    if (end_ == 0 && begin_ == 0 && !line.too_long) return std::nullopt;
    const size_t newline = end_ == 0 ? std::string::npos : buffer_.rfind('\n', end_ - 1);
    if (newline == std::string::npos && begin_ > 0) {
      if (end_ > longest_line_) {
        line.too_long = true;
        end_ = 0;  // what was read of it is not needed
      }
      read_block_before();
      continue;
    }
    const size_t from = newline == std::string::npos ? 0 : newline + 1;
    const std::string_view text(buffer_.data() + from, end_ - from);
    end_ = newline == std::string::npos ? 0 : newline;
    line.ended = !last_line_;
    last_line_ = false;
    if (line.too_long || text.size() > longest_line_) {
      line.too_long = true;
      return line;
    }
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    line.text = text;
    return line;
  }
}

}  // namespace hyperion
