// JsonLines reads the texts of a file of JSON lines, plain, .gz or .zst. line_file.h says how it is cut into
// blocks, docs/limits.md what a file may cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "data/document_source.h"
#include "data/line_file.h"
#include "data/text_field.h"

namespace simdjson::dom {
class parser;
}

namespace hyperion::data {

class JsonLines : public LineFile {
 public:
  static constexpr size_t kLineLimit = size_t{64} << 20;

  // Throws Error(kBadData) if the file cannot be read or is of another format.
  explicit JsonLines(const std::filesystem::path& path, TextField field = {},
                     TextBlocks blocks = TextBlocks::kWhole, size_t line_limit = kLineLimit);
  ~JsonLines() override;

  // Documents are the lines that are not blank. Throws Error(kBadData) naming the file if its compression is
  // damaged, or if the blocks opened one after another have been the whole file and hold no document.
  std::optional<uint64_t> open_block(uint64_t block) override;
  // Returns the text field, valid until the next call; "" for null. Other fields are ignored, with any valid
  // JSON in them. Bytes that are not UTF-8 are read as U+FFFD, as Tokenizer::encode() does, with one warning
  // per file. Throws BadDocument naming file:line if the line is not JSON, not an object, lacks the field
  // (listing its fields) or has it twice, if the field is not a string, or the line is over the limit;
  // Error(kBadData) if the file became shorter.
  std::string_view text(uint64_t document) override;

 private:
  std::string expected_format() const;
  template <typename... Args>
  [[noreturn]] void fail(uint64_t document, fmt::format_string<Args...> format, Args&&... args);
  [[noreturn]] void fail_without_field(uint64_t document, const std::vector<std::string>& names);
  std::string where(uint64_t document);

  std::string name_;
  TextField field_;
  uint64_t blocks_without_documents_ = 0;  // at the beginning of the file
  int counted_locations_ = 0;              // whose lines were counted for a message
  std::unique_ptr<simdjson::dom::parser> parser_;
  std::vector<char> padded_;  // the line being parsed, with the padding that simdjson reads
  bool warned_ = false;       // about bytes that are not UTF-8
};

}  // namespace hyperion::data
