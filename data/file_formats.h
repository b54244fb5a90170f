// The names and first bytes of document files, one row per format. Token shards are folders with their own
// names (token_shards.h).
#pragma once

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "base/files.h"

namespace hyperion::data {

enum class FormatUse {
  kText,        // read as JSON lines, whatever its first bytes are
  kCompressed,  // compressed text
  kColumns,     // columns, of which one is text
  kRefused,     // refused; `remedy` makes it readable
};
struct FileFormat {
  FormatUse use;
  std::string_view name, suffix, magic;
  std::string_view remedy{};
};

inline constexpr std::string_view kDecompress = "decompress it, or compress it with gzip or zstd";
inline constexpr std::array kFileFormats = {
    FileFormat{FormatUse::kText, "JSON", ".json", ""},
    FileFormat{FormatUse::kText, "JSON lines", ".jsonl", ""},
    FileFormat{FormatUse::kText, "JSON lines", ".ndjson", ""},
    FileFormat{FormatUse::kCompressed, "gzip", ".gz", "\x1F\x8B"},
    FileFormat{FormatUse::kCompressed, "zstd", ".zst", "\x28\xB5\x2F\xFD"},
    FileFormat{FormatUse::kCompressed, "zstd", ".zstd", "\x28\xB5\x2F\xFD"},
    FileFormat{FormatUse::kColumns, "Parquet", ".parquet", "PAR1"},
    FileFormat{FormatUse::kColumns, "Arrow", ".arrow", "ARROW1"},
    FileFormat{FormatUse::kRefused, "bzip2", ".bz2", "BZh", kDecompress},
    FileFormat{FormatUse::kRefused, "xz", ".xz", "\xFD\x37zXZ", kDecompress},
    FileFormat{FormatUse::kRefused, "lz4", ".lz4", "\x04\x22\x4D\x18", kDecompress},
    FileFormat{FormatUse::kRefused, "zip", ".zip", "PK\x03\x04", kDecompress},
};

// Returns whether the name has the suffix of a format with that use.
inline bool is_named(const std::filesystem::path& path, FormatUse use) {
  return std::ranges::any_of(kFileFormats, [&, suffix = path.extension().native()](const FileFormat& format) {
    return format.use == use && format.suffix == suffix;
  });
}

// The format that the name's suffix tells; null if none.
inline const FileFormat* format_by_name(const std::filesystem::path& path) {
  const auto found =
      std::ranges::find(kFileFormats, std::string_view(path.extension().native()), &FileFormat::suffix);
  return found == kFileFormats.end() ? nullptr : &*found;
}

// A skippable frame of zstd and lz4 holds no text: these bytes (with any low half of the first one), a
// 4-byte length, and the content.
inline constexpr std::string_view kSkippableMagic = "\x50\x2A\x4D\x18";
inline constexpr int kMaxSkippedFrames = 1000;  // before the first frame with text

// The format by the first bytes after skippable frames (zstd if there are only such frames); null for text.
inline const FileFormat* format_of(const InputFile& file) {
  char head[8] = {};
  uint64_t begin = 0;
  bool skippable = true;
  for (int skipped = 0; skippable && skipped <= kMaxSkippedFrames; ++skipped) {
    std::ranges::fill(head, '\0');
    if (begin < file.size()) file.read(begin, head, std::min<uint64_t>(sizeof head, file.size() - begin));
    skippable =
        (head[0] & 0xF0) == kSkippableMagic[0] && std::string_view(head + 1, 3) == kSkippableMagic.substr(1);
    for (int i = 0; skippable && i < 4; ++i)
      begin += uint64_t{static_cast<unsigned char>(head[4 + i])} << (8 * i);
    if (skippable) begin += sizeof head;
  }
  const auto found = std::ranges::find_if(kFileFormats, [&](const FileFormat& format) {
    return !format.magic.empty() && std::string_view(head, sizeof head).starts_with(format.magic);
  });
  if (found != kFileFormats.end()) return &*found;
  return begin > 0 ? &*std::ranges::find(kFileFormats, "zstd", &FileFormat::name) : nullptr;
}

}  // namespace hyperion::data
