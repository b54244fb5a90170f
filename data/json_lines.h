// JsonLines is one file of JSON lines, plain, .gz or .zst, with random access to its documents. A plain
// file is read once for the positions of its lines (8 bytes of memory per document), then line by line; a
// compressed one is decompressed into memory entirely. docs/limits.md says what a file may cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "data/decompress.h"
#include "data/document_source.h"
#include "data/text_field.h"

namespace simdjson::dom {
class parser;
}

namespace hyperion::data {

class JsonLines : public TextFile {
 public:
  static constexpr size_t kLineLimit = size_t{64} << 20;

  // Throws Error(kBadData) if the file cannot be read, its compression is damaged, or it has no document.
  explicit JsonLines(const std::filesystem::path& path, TextField field = {}, size_t line_limit = kLineLimit);
  ~JsonLines() override;

  // The number of lines that are not blank.
  uint64_t documents() const { return begins_.size() - 1; }
  // The line number of a document, counted from 1, blank lines included.
  uint64_t line(uint64_t document) const;
  std::optional<uint64_t> open_block(uint64_t block) override {
    return block == 0 ? std::optional(documents()) : std::nullopt;
  }
  uint64_t location(uint64_t document) const override { return line(document); }
  // Returns the text field, valid until the next call. Other fields are ignored, with any valid JSON in
  // them. Bytes that are not UTF-8 are read as U+FFFD, as Tokenizer::encode() does, with one warning per
  // file. Throws Error(kBadData) naming file:line if the line is not JSON, not an object, lacks the field
  // (listing its fields) or has it twice, if the field is not a string, the line is over the limit, or the
  // file became shorter.
  std::string_view text(uint64_t document) override;

  // Returns text() of a file's first document and throws like it, without reading the rest of a compressed
  // file.
  static std::string check_first_line(const std::filesystem::path& path, const TextField& field);

 private:
  struct Blank {
    uint64_t document;  // the document after the blank lines
    uint64_t lines;     // number of blank lines up to here
  };
  JsonLines(const std::filesystem::path& path, TextField field, size_t line_limit, bool first_line_only);
  void refuse_substitute(const std::string& what) const;  // does nothing if `what` is empty
  void index_lines();
  void read(uint64_t begin, char* out, size_t bytes) const;  // reads the content
  // Reads the document's line into padded_ and returns it; truncated if it is over the limit.
  std::string_view read_line(uint64_t document);
  std::string expected_format() const;
  std::string chosen_by() const;  // the option that sets the field
  [[noreturn]] void fail_without_field(uint64_t document, const std::vector<std::string>& names) const;

  std::string name_;
  TextField field_;
  size_t line_limit_;
  InputFile file_;
  bool in_memory_ = false;  // the content is in text_, else it is read from file_
  InflatedText text_;
  std::vector<uint64_t> begins_;  // start of each document's line, then the end of the content
  std::vector<Blank> blanks_;
  std::unique_ptr<simdjson::dom::parser> parser_;
  std::vector<char> padded_;  // the line being parsed, with the padding that simdjson reads
  bool warned_ = false;       // about bytes that are not UTF-8
};

}  // namespace hyperion::data
