#include "data/json_lines.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <simdjson.h>

#include "base/error.h"
#include "base/log.h"
#include "base/nearest.h"
#include "base/progress.h"
#include "base/substitute.h"
#include "base/utf8.h"
#include "data/file_formats.h"
#include "data/json_scan.h"

namespace hyperion::data {
namespace {

constexpr size_t kReadBlock = size_t{1} << 20;
constexpr size_t kFirstPiece = size_t{64} << 10;  // longer than nearly every line
constexpr size_t kKeptBuffer = size_t{4} << 20;
constexpr std::string_view kChatFields[] = {"messages", "conversations", "conversation"};

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

// Reads a file up to the end of its first line that is not blank, or further.
InflatedText first_line(const InputFile& file) {
  for (uint64_t size = kFirstPiece;; size = std::min<uint64_t>(size * 8, JsonLines::kLineLimit + 1)) {
    InflatedText text = read_begin(file, size);
    const std::string_view content = text.view();
    const size_t begin = std::min(content.find_first_not_of(" \t\r\n\xEF\xBB\xBF"), content.size());
    if (content.size() < size || size > JsonLines::kLineLimit || content.find('\n', begin) != content.npos)
      return text;
  }
}

// For Megatron's X.bin, tokens without a header, the format of X.idx next to it; null for other files.
const FileFormat* format_of_index(std::filesystem::path path) {
  std::error_code error;
  if (path.extension() != ".bin" || !std::filesystem::is_regular_file(path.replace_extension(".idx"), error))
    return nullptr;
  return format_of(InputFile(path));
}

}  // namespace

JsonLines::JsonLines(const std::filesystem::path& path, TextField field, size_t line_limit)
    : JsonLines(path, std::move(field), line_limit, /*first_line_only=*/false) {}

JsonLines::JsonLines(const std::filesystem::path& path, TextField field, size_t line_limit,
                     bool first_line_only)
    : name_(path.string()),
      field_(std::move(field)),
      line_limit_(line_limit),
      file_(path),
      parser_(std::make_unique<simdjson::dom::parser>()) {
  const FileFormat* format = format_of(file_);
  if (format == nullptr) format = format_of_index(path);
  if (format == nullptr) refuse_substitute(substitute_of(file_));
  if (format != nullptr && format->use == FormatUse::kRefused)
    throw_data("{}: is {}, which is not read: {}", name_, format->name,
               fmt::format(fmt::runtime(format->remedy), format->name == "Parquet" ? "parquet" : "feather"));
  in_memory_ = first_line_only || is_compressed(file_);
  if (in_memory_) {
    text_ = first_line_only ? first_line(file_) : decompress(file_, inflation_limit(file_.size()));
    file_ = InputFile();
    refuse_substitute(substitute_of(text_.view().substr(0, kSubstituteBytes)));
  }
  index_lines();
  if (documents() == 0)
    throw_data("{}: holds no document: remove the file, or write {}", name_, expected_format());
}

void JsonLines::refuse_substitute(const std::string& what) const {
  if (!what.empty()) throw_data("{}: {}", name_, what);
}

std::string JsonLines::check_first_line(const std::filesystem::path& path, const TextField& field) {
  return std::string(JsonLines(path, field, kLineLimit, /*first_line_only=*/true).text(0));
}

std::string JsonLines::expected_format() const {
  return fmt::format("one JSON object per line with a string field \"{}\" ({})", field_.name, chosen_by());
}

std::string JsonLines::chosen_by() const {
  return field_.default_key.empty() ? field_.key
                                    : fmt::format("{}, by default {}", field_.key, field_.default_key);
}

void JsonLines::fail_without_field(uint64_t document, const std::vector<std::string>& names) const {
  constexpr size_t kMaxNames = 20;
  std::string there;
  for (size_t i = 0; i < std::min(names.size(), kMaxNames); ++i)
    there += fmt::format("{}{:?}", i == 0 ? "" : ", ", names[i].substr(0, 60));
  if (names.size() > kMaxNames) there += fmt::format(" and {} more", names.size() - kMaxNames);
  const auto chat = std::ranges::find_first_of(names, kChatFields);
  if (chat != names.end())
    throw_data(
        "{}:{}: is chat data (its field \"{}\" holds a conversation) and has no field \"{}\" ({}), which is "
        "a "
        "plain text: write each conversation as one text, for example with apply_chat_template(..., "
        "tokenize=False) of its tokenizer in transformers; every token of it is then a label",
        name_, line(document), *chat, field_.name, chosen_by());
  // A field missing from the first line is probably the wrong field; from a later line, it is missing there.
  throw_data("{}:{}: has no field \"{}\" ({}); its fields are: {}{}: {}", name_, line(document), field_.name,
             chosen_by(), there.empty() ? "none" : there, did_you_mean(nearest_name(field_.name, names)),
             document == 0 ? fmt::format("set {} to the one with the text", field_.key)
                           : "correct or remove the line");
}

JsonLines::~JsonLines() = default;

void JsonLines::index_lines() {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  uint64_t line_begin = 0, blank_lines = 0;
  bool blank = true;  // whether the line is blank so far
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
      if (end == block.size()) break;  // the line continues in the next block
      end_line();
      at = end + 1;
      line_begin = begin + at;
    }
  };
  const uint64_t size = in_memory_ ? text_.view().size() : file_.size();
  Progress progress("indexing data", size, "B");
  std::string block;
  for (uint64_t begin = 0; begin < size;) {
    block.resize(std::min<uint64_t>(kReadBlock, size - begin));
    read(begin, block.data(), block.size());
    add(block, begin);
    progress.update(begin += block.size());
  }
  if (line_begin < size) end_line();
  begins_.push_back(size);
}

void JsonLines::read(uint64_t begin, char* out, size_t bytes) const {
  if (in_memory_)
    std::memcpy(out, text_.view().data() + begin, bytes);
  else
    file_.read(begin, out, bytes);
}

uint64_t JsonLines::line(uint64_t document) const {
  const auto after =
      std::upper_bound(blanks_.begin(), blanks_.end(), document,
                       [](uint64_t value, const Blank& blank) { return value < blank.document; });
  return document + 1 + (after == blanks_.begin() ? 0 : std::prev(after)->lines);
}

std::string_view JsonLines::read_line(uint64_t document) {
  const uint64_t begin = begins_[document];
  const uint64_t max = begins_[document + 1] - begin;  // blank lines may follow in it
  size_t size = 0;
  for (uint64_t want = std::min<uint64_t>(max, kFirstPiece);; want = std::min(max, want * 4)) {
    if (padded_.size() < want + simdjson::SIMDJSON_PADDING) padded_.resize(want + simdjson::SIMDJSON_PADDING);
    read(begin + size, padded_.data() + size, want - size);
    const void* newline = std::memchr(padded_.data() + size, '\n', want - size);
    size =
        newline != nullptr ? static_cast<size_t>(static_cast<const char*>(newline) - padded_.data()) : want;
    if (newline != nullptr || want == max || size > line_limit_) return {padded_.data(), size};
  }
}

std::string_view JsonLines::text(uint64_t document) {
  if (padded_.size() > kKeptBuffer) {  // after a long line: frees its buffer and the parser's
    padded_ = {};
    parser_ = std::make_unique<simdjson::dom::parser>();
  }
  const auto where = [&] { return fmt::format("{}:{}", name_, line(document)); };
  std::string_view source;
  try {
    source = read_line(document);
  } catch (const Error& error) {
    throw_data("{}: the document cannot be read: {}", where(), error.what());
  }
  if (source.size() > line_limit_)
    throw_data("{}: the line is too long, at most {} bytes are accepted: split the document", where(),
               line_limit_);

  simdjson::dom::element root;
  auto error = parser_->parse(padded_.data(), source.size(), false).get(root);
  if (error == simdjson::UTF8_ERROR) {
    if (!std::exchange(warned_, true))
      log_warning("{}: holds bytes that are not UTF-8: they are read as U+FFFD (said once for this file)",
                  where());
    error = parser_->parse(replace_ill_formed(source)).get(root);
  }
  if (error) {
    // The error may concern a value that is not read: valid JSON, but too large or too deep for the parser.
    const std::string reduced = without_other_values(replace_ill_formed(source), field_.name);
    if (!reduced.empty()) error = parser_->parse(reduced).get(root);
  }
  if (error)
    throw_data("{}: is not valid JSON ({}); expected {}: correct or remove the line", where(),
               simdjson::error_message(error), expected_format());
  simdjson::dom::object object;
  if (root.get(object))
    throw_data("{}: is JSON but no object; expected {}: correct or remove the line", where(),
               expected_format());
  std::optional<simdjson::dom::element> field;
  for (const auto& [key, value] : object) {
    if (key != field_.name) continue;
    if (field)
      throw_data("{}: has the field \"{}\" twice, so which of them is meant cannot be known: remove one",
                 where(), field_.name);
    field = value;
  }
  if (!field) {
    std::vector<std::string> names;
    for (const auto& [key, value] : object) names.emplace_back(key);
    fail_without_field(document, names);
  }
  std::string_view text;
  if (field->get(text))
    throw_data("{}: its \"{}\" is no string; expected {}: correct or remove the line", where(), field_.name,
               expected_format());
  return text;
}

}  // namespace hyperion::data
