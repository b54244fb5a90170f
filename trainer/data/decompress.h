// Whole-file decompression of .gz and .zst, recognised by their first bytes and not by the file's name.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace hyperion {

enum class Compression { kNone, kGzip, kZstd };

Compression detect_compression(std::span<const std::byte> bytes);

// Everything in `bytes`, which may be several gzip members or zstd frames in a row. Throws Error(kBadData)
// that names `name` when the data is damaged, ends early, or decompresses to more than `limit` bytes.
std::string decompress(std::span<const std::byte> bytes, Compression compression, const std::string& name,
                       size_t limit = size_t{64} << 30);

// Its first `size` bytes, or all when there are fewer; the rest is not looked at.
std::string decompress_begin(std::span<const std::byte> bytes, Compression compression,
                             const std::string& name, size_t size);

}  // namespace hyperion
