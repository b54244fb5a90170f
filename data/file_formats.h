// How files of documents are named and recognised, a row for each format. Token shards are folders with names
// of their own (token_shards.h).
#pragma once

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "base/files.h"

namespace hyperion::data {

enum class FormatUse {
  kText,        // read as JSON lines, whatever its first bytes are
  kCompressed,  // of text
  kRefused,     // `remedy` makes it readable
};
struct FileFormat {
  FormatUse use;
  std::string_view name, suffix, magic;
  std::string_view remedy{};
};

inline constexpr std::string_view kConvert =
    "write it as JSON lines, for example with pandas: python3 -c \"import pandas; "
    "pandas.read_{}('IN').to_json('OUT.jsonl', orient='records', lines=True)\"";
inline constexpr std::string_view kDecompress = "decompress it, or compress it with gzip or zstd";
inline constexpr std::array kFileFormats = {
    FileFormat{FormatUse::kText, "JSON", ".json", ""},
    FileFormat{FormatUse::kText, "JSON lines", ".jsonl", ""},
    FileFormat{FormatUse::kText, "JSON lines", ".ndjson", ""},
    FileFormat{FormatUse::kCompressed, "gzip", ".gz", "\x1F\x8B"},
    FileFormat{FormatUse::kCompressed, "zstd", ".zst", "\x28\xB5\x2F\xFD"},
    FileFormat{FormatUse::kRefused, "Parquet", ".parquet", "PAR1", kConvert},
    FileFormat{FormatUse::kRefused, "Arrow", ".arrow", "ARROW1", kConvert},
    FileFormat{FormatUse::kRefused, "bzip2", ".bz2", "BZh", kDecompress},
    FileFormat{FormatUse::kRefused, "xz", ".xz", "\xFD\x37zXZ", kDecompress},
    FileFormat{FormatUse::kRefused, "lz4", ".lz4", "\x04\x22\x4D\x18", kDecompress},
    FileFormat{FormatUse::kRefused, "zip", ".zip", "PK\x03\x04", kDecompress},
};

// Whether the name ends like one of a format with that use.
inline bool is_named(const std::filesystem::path& path, FormatUse use) {
  return std::ranges::any_of(kFileFormats, [&, suffix = path.extension().native()](const FileFormat& format) {
    return format.use == use && format.suffix == suffix;
  });
}

// The format that the first bytes tell; null for text.
inline const FileFormat* format_of(const InputFile& file) {
  char head[8] = {};
  file.read(0, head, std::min<uint64_t>(sizeof head, file.size()));
  const auto found = std::ranges::find_if(kFileFormats, [&](const FileFormat& format) {
    return !format.magic.empty() && std::string_view(head, sizeof head).starts_with(format.magic);
  });
  return found == kFileFormats.end() ? nullptr : &*found;
}

}  // namespace hyperion::data
