// One file of JSON lines, plain, .gz or .zst, with random access to its documents. A plain file is read once
// for the places of its lines (8 bytes of memory per document) and then line by line; a compressed one is
// decompressed into memory whole. docs/limits.md says what a file may cost.
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

namespace simdjson::dom {
class parser;
}

namespace hyperion::data {

// The field of each line that holds the document's text.
struct TextField {
  std::string name = "text";
  std::string key = "training.text_field";  // what chooses it for these data, for messages
  std::string default_key{};                // what `name` comes from where `key` is not set
};

class JsonLines {
 public:
  static constexpr size_t kLineLimit = size_t{64} << 20;

  // Throws Error(kBadData): cannot be read, damaged compression, no document.
  explicit JsonLines(const std::filesystem::path& path, TextField field = {}, size_t line_limit = kLineLimit);
  ~JsonLines();

  // Lines that hold more than white space.
  uint64_t documents() const { return begins_.size() - 1; }
  // The line number of a document, counted from 1, blank lines included.
  uint64_t line(uint64_t document) const;
  // The text field, valid until the next call. Other fields are ignored, whatever valid JSON they hold. Bytes
  // that are not UTF-8 are read as U+FFFD, as Tokenizer::encode() does, with one warning per file. Throws
  // Error(kBadData) naming file:line when the line is not JSON, not an object, lacks the field (with the
  // fields that it has) or has it twice, when the field is no string, the line is over the limit, or the file
  // became shorter.
  std::string_view text(uint64_t document);

  // text() of a file's first document, with all that it throws, without reading the rest of a compressed
  // file.
  static std::string check_first_line(const std::filesystem::path& path, const TextField& field);

 private:
  struct Blank {
    uint64_t document;  // the document after the blank lines
    uint64_t lines;     // blank lines so far
  };
  JsonLines(const std::filesystem::path& path, TextField field, size_t line_limit, bool first_line_only);
  void refuse_substitute(const std::string& what) const;  // unless it is empty
  void index_lines();
  void read(uint64_t begin, char* out, size_t bytes) const;  // of the content
  // Reads the document's line into padded_ and returns it; of one over the limit not all.
  std::string_view read_line(uint64_t document);
  std::string expected_format() const;
  std::string chosen_by() const;  // the key of the field
  [[noreturn]] void fail_without_field(uint64_t document, const std::vector<std::string>& names) const;

  std::string name_;
  TextField field_;
  size_t line_limit_;
  InputFile file_;
  bool in_memory_ = false;  // the content is in text_, else it is read from file_
  InflatedText text_;
  std::vector<uint64_t> begins_;  // where each document's line begins, then the end of the content
  std::vector<Blank> blanks_;
  std::unique_ptr<simdjson::dom::parser> parser_;
  std::vector<char> padded_;  // the line being parsed and the slack that simdjson reads beyond it
  bool warned_ = false;       // of bytes that are not UTF-8
};

}  // namespace hyperion::data
