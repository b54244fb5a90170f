#include "data/document_order.h"

#include <bit>

#include "base/philox.h"

namespace hyperion::data {

Permutation::Permutation(uint64_t size, uint64_t seed, uint64_t epoch, uint32_t stream, bool shuffle)
    : size_(size), seed_(seed), stream_(epoch << 32 | stream), shuffle_(shuffle && size > 1) {
  half_bits_ = (std::bit_width(size > 0 ? size - 1 : 0) + 1) / 2;
}

uint64_t Permutation::encrypt(uint64_t value) const {
  constexpr uint64_t kRounds = 8;  // enough for the smallest domains too, where halves have one or two bits
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t mixed = left ^ (philox4x32(seed_, round << 32 | right, stream_)[0] & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

uint64_t Permutation::operator()(uint64_t index) const {
  if (!shuffle_) return index;
  do {
    index = encrypt(index);
  } while (index >= size_);
  return index;
}

}  // namespace hyperion::data
