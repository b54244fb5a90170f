#include "app/report/backward_lines.h"

#include <algorithm>
#include <utility>

namespace hyperion::report {

BackwardLines::BackwardLines(const std::filesystem::path& path, size_t max_line, size_t block)
    : file_(path), max_line_(max_line), block_(block), size_(file_.size()), begin_(size_) {}

std::optional<BackwardLines::Line> BackwardLines::next() {
  Line line;
  while (begin_ > 0 || !buffer_.empty() || line.too_long) {
    const size_t newline = buffer_.rfind('\n');
    if (newline == std::string::npos && begin_ > 0) {
      if (buffer_.size() > max_line_) {
        line.too_long = true;
        buffer_.clear();  // what was read of it is not needed
      }
      std::string block(std::min<uint64_t>(block_, begin_), '\0');
      begin_ -= block.size();
      file_.read(begin_, block.data(), block.size());
      buffer_.insert(0, block);
      continue;
    }
    line.text = buffer_.substr(newline + 1);  // of all where there is no newline: npos + 1 is 0
    buffer_.resize(newline == std::string::npos ? 0 : newline);
    line.ended = !std::exchange(last_line_, false);
    line.too_long |= line.text.size() > max_line_;
    if (line.too_long) line.text.clear();
    if (line.too_long || line.text.find_first_not_of(" \t\r") != std::string::npos) return line;
  }
  return std::nullopt;
}

}  // namespace hyperion::report
