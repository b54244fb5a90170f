// The CRC-32 of zip archives: the one checksum PyTorch's files carry.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hyperion {

// Continues `crc` (0 at the begin) over `bytes` more bytes.
uint32_t crc32(uint32_t crc, const void* data, size_t bytes);

// The CRC of A followed by B, from the CRC of each and the length of B: pieces can be computed apart.
uint32_t crc32_combine(uint32_t crc_a, uint32_t crc_b, uint64_t bytes_b);

}  // namespace hyperion
