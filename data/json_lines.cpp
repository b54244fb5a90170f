#include "data/json_lines.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <simdjson.h>

#include "base/error.h"
#include "base/log.h"
#include "base/nearest.h"
#include "base/substitute.h"
#include "base/utf8.h"
#include "data/file_formats.h"
#include "data/json_scan.h"

namespace hyperion::data {
namespace {

constexpr size_t kKeptBuffer = size_t{4} << 20;
constexpr int kMaxCountedLocations = 16;  // each reads the file up to there
constexpr std::string_view kChatFields[] = {"messages", "conversations", "conversation"};
constexpr std::string_view kTextFields[] = {"text", "content"};  // usual names

// Opens a file whose first bytes are of no other format.
InputFile open_text_file(const std::filesystem::path& path) {
  InputFile file(path);
  const FileFormat* format = format_of(file);
  if (format == nullptr)
    if (const std::string other = substitute_of(file); !other.empty())
      throw_data("{}: {}", path.string(), other);
  if (format != nullptr && format->use == FormatUse::kRefused)
    throw_data("{}: is {}, which is not read: {}", path.string(), format->name, format->remedy);
  if (format != nullptr && format->use == FormatUse::kColumns)
    throw_data("{}: is {}: rename it so that its name ends in {}", path.string(), format->name,
               format->suffix);
  return file;
}

struct FoundField {
  std::optional<simdjson::dom::element> value{};
  bool twice = false;
  std::vector<std::string> names{};  // of the fields next to it, if there is no value
};

// Looks up a field by its name or, in objects, by names joined by dots.
FoundField find_field(simdjson::dom::object object, std::string_view name) {
  FoundField found;
  for (const auto& [first, rest] : paths_of(name)) {
    std::optional<simdjson::dom::element> value;
    for (const auto& [key, element] : object) {
      if (key != first) continue;
      if (value) return {.twice = true};
      value = element;
    }
    if (!value) continue;
    if (rest.empty() || value->is_null()) return {value};
    simdjson::dom::object inner;
    if (value->get(inner)) continue;
    FoundField below = find_field(inner, rest);
    if (below.value || below.twice) return below;
    for (const std::string& other : below.names) found.names.push_back(fmt::format("{}.{}", first, other));
  }
  for (const auto& [key, element] : object) found.names.emplace_back(key);
  return found;
}

}  // namespace

JsonLines::JsonLines(const std::filesystem::path& path, TextField field, TextBlocks blocks, size_t line_limit)
    : LineFile(open_text_file(path), blocks, line_limit),
      name_(path.string()),
      field_(std::move(field)),
      parser_(std::make_unique<simdjson::dom::parser>()) {
  if (const std::string other = substitute_of(head(kSubstituteBytes)); !other.empty())
    throw_data("{}: {}", name_, other);
}

JsonLines::~JsonLines() = default;

std::optional<uint64_t> JsonLines::open_block(uint64_t block) {
  const std::optional<uint64_t> documents = LineFile::open_block(block);
  if (block == blocks_without_documents_ && documents == 0) ++blocks_without_documents_;
  if (blocks_without_documents_ == (documents ? blocks().value_or(UINT64_MAX) : block))
    throw_data("{}: holds no document: remove the file, or write {}", name_, expected_format());
  return documents;
}

std::string JsonLines::expected_format() const {
  return fmt::format("one JSON object per line with a string field \"{}\" ({})", field_.name,
                     field_.chosen_by());
}

std::string JsonLines::where(uint64_t document) {
  const uint64_t at = location(document);
  if ((at & kByteLocation) == 0 || ++counted_locations_ <= kMaxCountedLocations)
    return describe_location(name_, at);
  return fmt::format("{}: the line at byte {}", name_, at & ~kByteLocation);
}

template <typename... Args>
void JsonLines::fail(uint64_t document, fmt::format_string<Args...> format, Args&&... args) {
  throw BadDocument(fmt::format("{}: {}", where(document), fmt::format(format, std::forward<Args>(args)...)));
}

void JsonLines::fail_without_field(uint64_t document, const std::vector<std::string>& names) {
  constexpr size_t kMaxNames = 20;
  std::string there;
  for (size_t i = 0; i < std::min(names.size(), kMaxNames); ++i)
    there += fmt::format("{}{:?}", i == 0 ? "" : ", ", names[i].substr(0, 60));
  if (names.size() > kMaxNames) there += fmt::format(" and {} more", names.size() - kMaxNames);
  const auto chat = std::ranges::find_first_of(names, kChatFields);
  if (chat != names.end())
    fail(document,
         "is chat data (its field \"{}\" holds a conversation) and has no field \"{}\" ({}), which is a "
         "plain text: write each conversation as one text, for example with apply_chat_template(..., "
         "tokenize=False) of its tokenizer in transformers; every token of it is then a label",
         *chat, field_.name, field_.chosen_by());
  std::string meant = nearest_name(field_.name, names);
  if (const auto usual = std::ranges::find_first_of(names, kTextFields);
      meant.empty() && usual != names.end())
    meant = *usual;
  // A field missing from the first line is probably the wrong field; from a later line, it is missing there.
  fail(document, "has no field \"{}\" ({}); its fields are: {}{}: {}", field_.name, field_.chosen_by(),
       there.empty() ? "none" : there, did_you_mean(meant),
       is_first(document) ? fmt::format("set {} to the one with the text", field_.key)
                          : "correct or remove the line");
}

std::string_view JsonLines::text(uint64_t document) {
  if (padded_.size() > kKeptBuffer) {  // after a long line: frees its buffer and the parser's
    padded_ = {};
    parser_ = std::make_unique<simdjson::dom::parser>();
  }
  std::string_view source;
  try {
    const size_t size = read_line(document, simdjson::SIMDJSON_PADDING, padded_);
    source = {padded_.data(), size};
  } catch (const Error& error) {
    throw_data("{}: the document cannot be read: {}", where(document), error.what());
  }
  if (source.size() > line_limit())
    fail(document, "the line is too long, at most {} bytes are accepted: split the document", line_limit());

  simdjson::dom::element root;
  auto error = parser_->parse(padded_.data(), source.size(), false).get(root);
  if (error == simdjson::UTF8_ERROR) {
    if (!std::exchange(warned_, true))
      log_warning("{}: holds bytes that are not UTF-8: they are read as U+FFFD (said once for this file)",
                  where(document));
    error = parser_->parse(replace_ill_formed(source)).get(root);
  }
  if (error) {
    // The error may concern a value that is not read: valid JSON, but too large or too deep for the parser.
    const std::string reduced = without_other_values(replace_ill_formed(source), field_.name);
    if (!reduced.empty()) error = parser_->parse(reduced).get(root);
  }
  if (error)
    fail(document, "is not valid JSON ({}); expected {}: correct or remove the line",
         simdjson::error_message(error), expected_format());
  simdjson::dom::object object;
  if (root.get(object))
    fail(document, "is JSON but no object; expected {}: correct or remove the line", expected_format());
  const FoundField field = find_field(object, field_.name);
  if (field.twice)
    fail(document, "has the field \"{}\" twice, so which of them is meant cannot be known: remove one",
         field_.name);
  if (!field.value) fail_without_field(document, field.names);
  std::string_view text;
  if (!field.value->is_null() && field.value->get(text))
    fail(document, "its \"{}\" is no string; expected {}: correct or remove the line", field_.name,
         expected_format());
  return text;
}

}  // namespace hyperion::data
