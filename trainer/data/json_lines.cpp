#include "trainer/data/json_lines.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <simdjson.h>

#include "base/error.h"
#include "base/progress.h"
#include "trainer/data/decompress.h"

namespace hyperion {
namespace {

constexpr std::string_view kExpected = "expected one JSON object a line with a string field \"text\"";

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

// Formats that data sets also come in, by their first bytes, with what to do about one.
struct OtherFormat {
  std::string_view magic, name, remedy;
};
constexpr std::string_view kConvert =
    "write it as JSON lines, for example with pandas: python3 -c \"import pandas; "
    "pandas.read_{}('IN').to_json('OUT.jsonl', orient='records', lines=True)\"";
constexpr std::string_view kDecompress = "decompress it, or compress it with gzip or zstd";
constexpr std::array<OtherFormat, 6> kOtherFormats = {{{"PAR1", "Parquet", kConvert},
                                                       {"ARROW1", "Arrow", kConvert},
                                                       {"BZh", "bzip2", kDecompress},
                                                       {"\xFD"
                                                        "7zXZ",
                                                        "xz", kDecompress},
                                                       {"\x04\x22\x4D\x18", "lz4", kDecompress},
                                                       {"PK\x03\x04", "zip", kDecompress}}};

void refuse_other_formats(std::string_view content, const std::string& name) {
  for (const OtherFormat& format : kOtherFormats) {
    if (!content.starts_with(format.magic)) continue;
    const std::string reader = format.name == "Parquet" ? "parquet" : "feather";
    throw_data("{}: is {}, which is not read: {}", name, format.name,
               fmt::format(fmt::runtime(format.remedy), reader));
  }
}

}  // namespace

JsonLines::JsonLines(const std::filesystem::path& path, size_t line_limit)
    : name_(path.string()),
      line_limit_(line_limit),
      map_(path),
      parser_(std::make_unique<simdjson::dom::parser>()) {
  const std::span<const std::byte> bytes = map_.bytes();
  const Compression compression = detect_compression(bytes);
  if (compression == Compression::kNone) {
    refuse_other_formats({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, name_);
    content_ = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  } else {
    decompressed_ = decompress(bytes, compression, name_);
    content_ = decompressed_;
    map_ = MappedFile();
  }
  index_lines();
  if (documents() == 0)
    throw_data("{}: holds no document: remove the file, or give it {}", name_, kExpected.substr(9));
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
