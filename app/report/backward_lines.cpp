#include "app/report/backward_lines.h"

#include <algorithm>

namespace hyperion::report {

BackwardLines::BackwardLines(const std::filesystem::path& path, size_t max_line, size_t block)
    : file_(path), max_line_(max_line), block_(block), size_(file_.size()), begin_(size_) {}

void BackwardLines::read_block_before() {
  const size_t size = std::min<uint64_t>(block_, begin_);
  std::string block(size, '\0');
  file_.read(begin_ - size, block.data(), size);
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
      if (end_ > max_line_) {
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
    if (line.too_long || text.size() > max_line_) {
      line.too_long = true;
      return line;
    }
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    line.text = text;
    return line;
  }
}

}  // namespace hyperion::report
