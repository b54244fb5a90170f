// XXH3-64 of bytes and strings: keys for Philox streams, fingerprints of configuration and data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hyperion {

uint64_t hash_bytes(const void* data, size_t size, uint64_t seed = 0);
inline uint64_t hash_text(std::string_view text, uint64_t seed = 0) {
  return hash_bytes(text.data(), text.size(), seed);
}

}  // namespace hyperion
