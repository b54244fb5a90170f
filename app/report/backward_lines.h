// The lines of a file from the last to the first, in bounded memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/files.h"

namespace hyperion::report {

class BackwardLines {
 public:
  struct Line {
    std::string text;
    bool too_long = false;  // longer than the limit; `text` is empty then
    bool ended = true;      // false for a last line without an end, which may be in the making
  };

  // Takes a regular file only. Throws Error(kBadData) naming the path. What is appended later is not read.
  explicit BackwardLines(const std::filesystem::path& path, size_t max_line = 256 * 1024,
                         size_t block = 1024 * 1024);

  // Blank lines are passed over. Throws Error(kBadData) when the file became shorter or cannot be read.
  std::optional<Line> next();

  uint64_t size() const { return size_; }
  uint64_t done() const { return size_ - begin_; }  // bytes read so far

 private:
  InputFile file_;
  size_t max_line_, block_;
  uint64_t size_ = 0, begin_ = 0;  // where in the file buffer_ starts
  std::string buffer_;             // not returned yet
  bool last_line_ = true;
};

}  // namespace hyperion::report
