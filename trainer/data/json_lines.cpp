#include "trainer/data/json_lines.h"

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
#include "trainer/data/decompress.h"
#include "trainer/data/utf8.h"

namespace hyperion {
namespace {

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

JsonLines::JsonLines(TextField field, size_t line_limit, std::string name)
    : name_(std::move(name)),
      field_(std::move(field)),
      line_limit_(line_limit),
      parser_(std::make_unique<simdjson::dom::parser>()) {}

JsonLines::JsonLines(const std::filesystem::path& path, TextField field, size_t line_limit)
    : JsonLines(std::move(field), line_limit, path.string()) {
  map_ = MappedFile(path);
  const std::span<const std::byte> bytes = map_.bytes();
  const Compression compression = detect_compression(bytes);
  if (compression == Compression::kNone) {
    content_ = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  } else {
    decompressed_ = decompress(bytes, compression, name_);
    content_ = decompressed_;
    map_ = MappedFile();
  }
  index_lines();
  if (documents() == 0) throw_data("{}: holds no document: remove the file, or write {}", name_, expected());
}

void JsonLines::check_first_line(const std::filesystem::path& path, const TextField& field) {
  JsonLines lines(field, kLineLimit, path.string());
  lines.map_ = MappedFile(path);
  const std::span<const std::byte> bytes = lines.map_.bytes();
  const Compression compression = detect_compression(bytes);
  for (size_t size = size_t{64} << 10;; size *= 8) {
    lines.decompressed_ = decompress_begin(bytes, compression, lines.name_, size);
    lines.content_ = lines.decompressed_;
    const size_t text = lines.content_.find_first_not_of(" \t\r\n\xEF\xBB\xBF");
    const size_t end = lines.content_.find('\n', std::min(text, lines.content_.size()));
    const bool whole = lines.content_.size() < size || size > kLineLimit;  // there is no more, or too much
    if (end == std::string_view::npos && !whole) continue;
    lines.content_ = lines.content_.substr(0, end);
    break;
  }
  lines.index_lines();
  if (lines.documents() == 0)
    throw_data("{}: holds no document: remove the file, or write {}", lines.name_, lines.expected());
  lines.text(0);
}

std::string JsonLines::expected() const {
  return fmt::format("one JSON object per line with a string field \"{}\" ({})", field_.name, field_.key);
}

void JsonLines::fail_without_field(uint64_t document, const std::vector<std::string>& names) const {
  constexpr size_t kMostNames = 20;
  std::string there;
  for (size_t i = 0; i < std::min(names.size(), kMostNames); ++i)
    there += fmt::format("{}{:?}", i == 0 ? "" : ", ", names[i].substr(0, 60));
  if (names.size() > kMostNames) there += fmt::format(" and {} more", names.size() - kMostNames);
  throw_data("{}:{}: has no field \"{}\" ({}); its fields are: {}{}: set {} to the one with the text", name_,
             line(document), field_.name, field_.key, there.empty() ? "none" : there,
             did_you_mean(nearest_name(field_.name, names)), field_.key);
}

JsonLines::~JsonLines() = default;

void JsonLines::index_lines() {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  uint64_t blank_lines = 0;
  Progress progress("indexing data", content_.size(), "B");
  for (size_t at = content_.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0; at < content_.size();) {
    const size_t end = std::min(content_.find('\n', at), content_.size());
    if (is_blank(content_.substr(at, end - at))) {
      ++blank_lines;
      if (!blanks_.empty() && blanks_.back().document == begins_.size()) {
        blanks_.back().lines = blank_lines;
      } else {
        blanks_.push_back({begins_.size(), blank_lines});
      }
    } else {
      begins_.push_back(at);
    }
    at = end + 1;
    if (begins_.size() % 65536 == 0) progress.update(at);
  }
  begins_.push_back(content_.size());
}

uint64_t JsonLines::line(uint64_t document) const {
  const auto after =
      std::upper_bound(blanks_.begin(), blanks_.end(), document,
                       [](uint64_t value, const Blank& blank) { return value < blank.document; });
  return document + 1 + (after == blanks_.begin() ? 0 : std::prev(after)->lines);
}

std::string_view JsonLines::text(uint64_t document) {
  std::string_view source = content_.substr(begins_[document], begins_[document + 1] - begins_[document]);
  source = source.substr(0, source.find('\n'));
  if (source.size() > line_limit_) {
    throw_data("{}:{}: the line is {} bytes, at most {} are accepted: split the document", name_,
               line(document), source.size(), line_limit_);
  }
  if (padded_.size() < source.size() + simdjson::SIMDJSON_PADDING)
    padded_.resize(source.size() * 3 / 2 + simdjson::SIMDJSON_PADDING);
  std::memcpy(padded_.data(), source.data(), source.size());

  simdjson::dom::element root;
  auto error = parser_->parse(padded_.data(), source.size(), false).get(root);
  if (error == simdjson::UTF8_ERROR) {
    if (!std::exchange(warned_, true))
      log_warning("{}:{}: holds bytes that are not UTF-8: they are read as U+FFFD (said once for this file)",
                  name_, line(document));
    error = parser_->parse(replace_ill_formed(source)).get(root);
  }
  if (error)
    throw_data("{}:{}: is not valid JSON ({}); expected {}: correct or remove the line", name_,
               line(document), simdjson::error_message(error), expected());
  simdjson::dom::object object;
  if (root.get(object))
    throw_data("{}:{}: is JSON but no object; expected {}", name_, line(document), expected());
  std::optional<simdjson::dom::element> field;
  for (const auto& [key, value] : object) {
    if (key != field_.name) continue;
    if (field)
      throw_data("{}:{}: has the field \"{}\" twice, so which of them is meant cannot be known: remove one",
                 name_, line(document), field_.name);
    field = value;
  }
  if (!field) {
    std::vector<std::string> names;
    for (const auto& [key, value] : object) names.emplace_back(key);
    fail_without_field(document, names);
  }
  std::string_view text;
  if (field->get(text))
    throw_data("{}:{}: its \"{}\" is no string; expected {}", name_, line(document), field_.name, expected());
  return text;
}

}  // namespace hyperion
