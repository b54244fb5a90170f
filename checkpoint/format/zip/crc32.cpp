#include "checkpoint/format/zip/crc32.h"

#include <libdeflate.h>
#include <zlib.h>

namespace hyperion {

// libdeflate folds with carry-less multiplication: three times as fast as Debian's zlib.
uint32_t crc32(uint32_t crc, const void* data, size_t bytes) {
  return bytes == 0 ? crc : libdeflate_crc32(crc, data, bytes);
}

uint32_t crc32_combine(uint32_t crc_a, uint32_t crc_b, uint64_t bytes_b) {
  return static_cast<uint32_t>(::crc32_combine(crc_a, crc_b, static_cast<z_off_t>(bytes_b)));
}

}  // namespace hyperion
