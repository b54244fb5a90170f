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

namespace {
// Ranges of `stream`: documents have the numbers of files plus 1.
constexpr uint32_t kBlocks = 1u << 31;
constexpr uint32_t kParts = 3u << 30;

// Another seed for each number; the seed itself for 0.
uint64_t seed_for(uint64_t seed, uint64_t number) {
  return seed ^ (number * 0x9E3779B97F4A7C15);
}
}  // namespace

Permutation part_order(uint64_t parts, uint32_t slot, uint64_t seed, uint64_t epoch, bool shuffle) {
  return {parts, seed, epoch, kParts | slot, shuffle};
}

Permutation block_order(uint64_t blocks, uint32_t file, uint32_t part, uint64_t seed, uint64_t epoch,
                        bool shuffle) {
  return {blocks, seed_for(seed, part), epoch, kBlocks | file, shuffle};
}

Permutation document_order(uint64_t documents, uint32_t file, uint64_t block, uint64_t seed, uint64_t epoch,
                           bool shuffle) {
  return {documents, seed_for(seed, block), epoch, file + 1, shuffle};
}

}  // namespace hyperion::data
