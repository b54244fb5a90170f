// A LineFile has the lines of a text file, plain, .gz or .zst, that are not blank. TextBlocks says how it
// is cut: into stretches of the text, where a line belongs to the stretch in which it begins and only one
// stretch is in memory, or as one block, which keeps the positions of all lines of a plain file (8 bytes for
// each) or all text of a compressed one. A compressed file is inflated from its beginning, stretch by
// stretch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "data/decompress.h"
#include "data/document_source.h"
#include "data/text_field.h"

namespace hyperion::data {

// A location with this bit is the byte of the file at which the line begins: how many lines are in front of a
// stretch of a plain file is not known.
inline constexpr uint64_t kByteLocation = uint64_t{1} << 63;

// "file:line" of a location (see BlockFile::location()). Counts the lines up to a kByteLocation, which reads
// the file that far: call it where a message is made.
std::string describe_location(const std::filesystem::path& file, uint64_t location);

// The lines of a text that are not blank, found in pieces of the text that follow one another.
class LineIndex {
 public:
  // Forgets all lines. A line begins at `begin`; lines that begin at `end` or later are not looked for.
  void start(uint64_t begin, uint64_t end);
  // The text goes on with `piece`.
  void add(std::string_view piece);
  // The text has ended.
  void finish();

  uint64_t documents() const { return begins_.size(); }
  uint64_t begin(uint64_t document) const { return begins_[document]; }
  // The end of a document's line; blank lines may be in front of it.
  uint64_t end(uint64_t document) const {
    return document + 1 < begins_.size() ? begins_[document + 1] : next_line_;
  }
  // The number of a document's line, counted from 1 at start().
  uint64_t line(uint64_t document) const;
  uint64_t lines() const { return lines_; }  // the open one not counted
  // Returns whether a line that begins before `end` is not complete.
  bool is_open() const { return open_ && next_line_ < end_; }
  bool is_blank() const { return blank_; }           // the open line, so far
  uint64_t next_line() const { return next_line_; }  // where the open or next line begins
  // Takes the open line as a document although its end is not known; end() of it is `text_end`.
  void cut_off(uint64_t text_end);

 private:
  struct Blank {
    uint64_t document;  // the document after the blank lines
    uint64_t lines;     // number of blank lines up to here
  };
  void end_line(uint64_t next);

  uint64_t end_ = 0, next_line_ = 0, at_ = 0, lines_ = 0, blank_lines_ = 0;
  bool open_ = false, blank_ = true;
  std::vector<uint64_t> begins_;
  std::vector<Blank> blanks_;
};

class LineFile : public TextFile {
 public:
  static constexpr uint64_t kStretch = uint64_t{1} << 20;

  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  std::optional<uint64_t> blocks() const override;
  std::optional<uint64_t> open_block(uint64_t block) override;
  uint64_t bytes_after_block() const override;
  // A line number, counted with blank lines, or a place in bytes: see describe_location().
  uint64_t location(uint64_t document) const override;

 protected:
  // Lines longer than `line_limit` are not read to their end.
  LineFile(InputFile file, TextBlocks blocks, size_t line_limit);
  size_t line_limit() const { return line_limit_; }

  // Returns whether it is the file's first document.
  bool is_first(uint64_t document) const { return block_ == 0 && document == 0; }
  // Copies a document's line to `out` and returns its size; of a line over the limit, more than `line_limit`
  // bytes. `out` becomes at least `padding` bytes longer than the line.
  size_t read_line(uint64_t document, size_t padding, std::vector<char>& out) const;
  // The first bytes of the text, at most `size`.
  std::string head(size_t size) const;

 private:
  void index_whole_file();            // plain
  void read_stretch(uint64_t block);  // plain
  void rewind();                      // compressed
  // Opens the stretch behind the open one; false at the end of the text. Compressed.
  bool inflate_next_stretch();
  // Appends up to `bytes` of the text to text_; false at its end.
  bool extend_text(uint64_t bytes);
  // Finds the lines that begin in [first_line, end).
  void index_stretch(uint64_t first_line, uint64_t end);
  void read(uint64_t begin, char* out, size_t bytes) const;

  InputFile file_;
  bool whole_;
  size_t line_limit_;
  uint64_t stretch_;  // bytes of text
  bool compressed_;
  std::optional<uint64_t> block_;  // the open block
  LineIndex index_;
  std::optional<uint64_t> lines_before_;    // the open block, if known
  std::string text_;                        // of the open stretch and behind it
  uint64_t base_ = 0;                       // place of text_[0]
  std::unique_ptr<InflatedStream> stream_;  // behind text_
  bool in_long_line_ = false;               // stream_ is in a line that is over the limit
};

}  // namespace hyperion::data
