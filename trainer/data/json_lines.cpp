#include "trainer/data/json_lines.h"

#include <algorithm>
#include <cstring>

#include <simdjson.h>

#include "base/error.h"
#include "base/progress.h"

namespace hyperion {
namespace {

constexpr std::string_view kExpected = "expected one JSON object a line with a string field \"text\"";

constexpr size_t kReadBlock = size_t{1} << 20;
constexpr size_t kFirstPiece = size_t{64} << 10;  // nearly every line is shorter
constexpr size_t kKeptBuffer = size_t{4} << 20;

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

JsonLines::JsonLines(const std::filesystem::path& path, size_t line_limit)
    : name_(path.string()),
      line_limit_(line_limit),
      file_(path),
      parser_(std::make_unique<simdjson::dom::parser>()) {
  const Compression compression = detect_compression(file_);
  compressed_ = compression != Compression::kNone;
  if (compressed_) {
    decompressed_ = decompress(file_, compression, inflation_limit(file_.size()));
    file_ = InputFile();
  }
  index_lines();
  if (documents() == 0)
    throw_data("{}: holds no document: remove the file, or give it {}", name_, kExpected.substr(9));
}

JsonLines::~JsonLines() = default;

void JsonLines::index_lines() {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  uint64_t line_begin = 0, blank_lines = 0;
  bool blank = true;  // the line so far
  const auto end_line = [&] {
    if (!blank) {
      begins_.push_back(line_begin);
    } else if (++blank_lines; !blanks_.empty() && blanks_.back().document == begins_.size()) {
      blanks_.back().lines = blank_lines;
    } else {
      blanks_.push_back({begins_.size(), blank_lines});
    }
    blank = true;
  };
  const auto add = [&](std::string_view block, uint64_t begin) {
    size_t at = 0;
    if (begin == 0 && block.starts_with(kByteOrderMark)) line_begin = at = kByteOrderMark.size();
    while (at < block.size()) {
      const size_t end = std::min(block.find('\n', at), block.size());
      blank = blank && is_blank(block.substr(at, end - at));
      if (end == block.size()) break;  // the next block goes on with this line
      end_line();
      at = end + 1;
      line_begin = begin + at;
    }
  };
  const uint64_t size = compressed_ ? decompressed_.view().size() : file_.size();
  Progress progress("indexing data", size, "B");
  std::string block;
  for (uint64_t begin = 0; begin < size;) {
    const size_t bytes = std::min<uint64_t>(kReadBlock, size - begin);
    if (!compressed_) {
      block.resize(bytes);
      file_.read(begin, block.data(), bytes);
    }
    add(compressed_ ? decompressed_.view().substr(begin, bytes) : block, begin);
    progress.update(begin += bytes);
  }
  if (line_begin < size) end_line();
  begins_.push_back(size);
}

uint64_t JsonLines::line(uint64_t document) const {
  const auto after =
      std::upper_bound(blanks_.begin(), blanks_.end(), document,
                       [](uint64_t value, const Blank& blank) { return value < blank.document; });
  return document + 1 + (after == blanks_.begin() ? 0 : std::prev(after)->lines);
}

std::string_view JsonLines::read_line(uint64_t document) {
  const uint64_t begin = begins_[document];
  const uint64_t most = begins_[document + 1] - begin;  // blank lines may follow in it
  size_t size = 0;
  for (uint64_t want = std::min<uint64_t>(most, kFirstPiece);; want = std::min(most, want * 4)) {
    if (padded_.size() < want + simdjson::SIMDJSON_PADDING) padded_.resize(want + simdjson::SIMDJSON_PADDING);
    if (compressed_)
      std::memcpy(padded_.data() + size, decompressed_.view().data() + begin + size, want - size);
    else
      file_.read(begin + size, padded_.data() + size, want - size);
    const void* newline = std::memchr(padded_.data() + size, '\n', want - size);
    size =
        newline != nullptr ? static_cast<size_t>(static_cast<const char*>(newline) - padded_.data()) : want;
    if (newline != nullptr || want == most || size > line_limit_) return {padded_.data(), size};
  }
}

std::string_view JsonLines::text(uint64_t document) {
  if (padded_.size() > kKeptBuffer) {  // after a long line: neither its buffer nor the parser's stays
    padded_ = {};
    parser_ = std::make_unique<simdjson::dom::parser>();
  }
  std::string_view source;
  try {
    source = read_line(document);
  } catch (const Error& error) {
    throw_data("{}:{}: the document cannot be read: {}", name_, line(document), error.what());
  }
  if (source.size() > line_limit_)
    throw_data("{}:{}: the line is too long, at most {} bytes are accepted: split the document", name_,
               line(document), line_limit_);

  simdjson::dom::element root;
  if (const auto error = parser_->parse(padded_.data(), source.size(), false).get(root)) {
    throw_data("{}:{}: is not valid JSON ({}); {}: correct or remove the line", name_, line(document),
               simdjson::error_message(error), kExpected);
  }
  simdjson::dom::object object;
  if (root.get(object)) throw_data("{}:{}: is JSON but no object; {}", name_, line(document), kExpected);
  simdjson::dom::element field;
  if (object.at_key("text").get(field))
    throw_data("{}:{}: has no field \"text\"; {}: rename the field that holds it", name_, line(document),
               kExpected);
  std::string_view text;
  if (field.get(text)) throw_data("{}:{}: its \"text\" is no string; {}", name_, line(document), kExpected);
  return text;
}

}  // namespace hyperion
