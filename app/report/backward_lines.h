// BackwardLines reads the lines of a file from the last to the first, in bounded memory.
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
    bool ended = true;      // false: the last line has no line feed and may be incomplete
  };

  // Takes a regular file only. Throws Error(kBadData) naming the path. Lines that are appended later are not
  // read.
  explicit BackwardLines(const std::filesystem::path& path, size_t max_line = 256 * 1024,
                         size_t block = 1024 * 1024);

  // Returns the next line; skips blank lines. Throws Error(kBadData) if the file became shorter or cannot be
  // read.
  std::optional<Line> next();

  uint64_t size() const { return size_; }
  uint64_t done() const { return size_ - begin_; }  // bytes read so far

 private:
  InputFile file_;
  size_t max_line_, block_;
  uint64_t size_ = 0, begin_ = 0;  // file offset of buffer_
  std::string buffer_;             // not yet returned
  bool last_line_ = true;
};

}  // namespace hyperion::report
