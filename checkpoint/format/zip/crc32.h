// CRC-32 of zip archives, the only checksum in PyTorch's files.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hyperion::checkpoint {

// Continues `crc` (0 at the start) over `bytes` more bytes.
uint32_t crc32(uint32_t crc, const void* data, size_t bytes);

}  // namespace hyperion::checkpoint
