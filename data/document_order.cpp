#include "data/document_order.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

#include "base/philox.h"
#include "base/processor.h"

namespace hyperion::data {
namespace {

constexpr size_t kLanes = 16;

// Encrypts each of kLanes values once, with the words of philox4x32().
HYPERION_VECTORISED void encrypt(uint64_t seed, uint64_t stream, int half_bits, uint64_t* values) {
  constexpr uint32_t kRounds = 8;  // enough for the smallest domains too, where halves have one or two bits
  const auto mask = static_cast<uint32_t>((uint64_t{1} << half_bits) - 1);
  uint32_t left[kLanes], right[kLanes], c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
  for (size_t i = 0; i < kLanes; ++i) {
    left[i] = static_cast<uint32_t>(values[i] >> half_bits);
    right[i] = static_cast<uint32_t>(values[i]) & mask;
  }
  for (uint32_t round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < kLanes; ++i) {
      c0[i] = right[i];
      c1[i] = round;
      c2[i] = static_cast<uint32_t>(stream);
      c3[i] = static_cast<uint32_t>(stream >> 32);
    }
    philox4x32_lanes(seed, c0, c1, c2, c3);
    for (size_t i = 0; i < kLanes; ++i) {
      const uint32_t mixed = left[i] ^ (c0[i] & mask);
      left[i] = right[i];
      right[i] = mixed;
    }
  }
  for (size_t i = 0; i < kLanes; ++i) values[i] = uint64_t{left[i]} << half_bits | right[i];
}

}  // namespace

Permutation::Permutation(uint64_t size, uint64_t seed, uint64_t epoch, uint32_t stream, bool shuffle)
    : size_(size), seed_(seed), stream_(epoch << 32 | stream), shuffle_(shuffle && size > 1) {
  half_bits_ = (std::bit_width(size > 0 ? size - 1 : 0) + 1) / 2;
}

void Permutation::fill(uint64_t first, std::span<uint64_t> out) const {
  std::iota(out.begin(), out.end(), first);
  if (!shuffle_) return;
  std::vector<size_t> outside(out.size());  // the indices of values that are not below size_ yet
  std::iota(outside.begin(), outside.end(), size_t{0});
  while (!outside.empty()) {
    for (size_t begin = 0; begin < outside.size(); begin += kLanes) {
      const auto group = std::span(outside).subspan(begin, std::min(kLanes, outside.size() - begin));
      uint64_t values[kLanes] = {};
      for (size_t i = 0; i < group.size(); ++i) values[i] = out[group[i]];
      encrypt(seed_, stream_, half_bits_, values);
      for (size_t i = 0; i < group.size(); ++i) out[group[i]] = values[i];
    }
    std::erase_if(outside, [&](size_t i) { return out[i] < size_; });
  }
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
