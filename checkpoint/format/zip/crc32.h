// The CRC-32 of zip archives: the one checksum PyTorch's files carry.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hyperion::checkpoint {

// Continues `crc` (0 at the begin) over `bytes` more bytes.
uint32_t crc32(uint32_t crc, const void* data, size_t bytes);

}  // namespace hyperion::checkpoint
