#include "base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace hyperion {

uint64_t hash_bytes(const void* data, size_t size, uint64_t seed) {
  return XXH3_64bits_withSeed(data, size, seed);
}

struct RunningHash::State {
  XXH3_state_t xxh;
};

RunningHash::RunningHash() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->xxh);
}

RunningHash::~RunningHash() = default;

void RunningHash::add(const void* data, size_t bytes) {
  XXH3_64bits_update(&state_->xxh, data, bytes);
}

uint64_t RunningHash::value() const {
  return XXH3_64bits_digest(&state_->xxh);
}

}  // namespace hyperion
