// The orders of files, blocks and documents in an epoch: a function of (seed, epoch) only, the same on every
// mesh, with no array in memory whatever the number of documents.
#pragma once

#include <cstdint>
#include <span>

namespace hyperion::data {

// A pseudo-random permutation of [0, size): a Feistel network of Philox rounds on the next even number of
// bits, walked until the value falls inside (Black & Rogaway, "Ciphers with Arbitrary Finite Domains", 2002,
// cycle walking; at most 4 steps on average). `stream` separates the permutations of one epoch. shuffle =
// false gives the identity.
class Permutation {
 public:
  Permutation(uint64_t size, uint64_t seed, uint64_t epoch, uint32_t stream, bool shuffle);

  // index < size
  uint64_t operator()(uint64_t index) const {
    uint64_t value = 0;
    fill(index, std::span(&value, 1));
    return value;
  }
  // The values at [first, first + out.size()), all below size: many take a fraction of the time of each
  // alone.
  void fill(uint64_t first, std::span<uint64_t> out) const;

 private:
  uint64_t size_;
  uint64_t seed_;
  uint64_t stream_;
  int half_bits_ = 0;
  bool shuffle_;
};

// The orders in an epoch: of the parts in a slot, of the blocks in a part of a file, of the documents in a
// block (see shuffle_plan.h).
Permutation part_order(uint64_t parts, uint32_t slot, uint64_t seed, uint64_t epoch, bool shuffle);
Permutation block_order(uint64_t blocks, uint32_t file, uint32_t part, uint64_t seed, uint64_t epoch,
                        bool shuffle);
Permutation document_order(uint64_t documents, uint32_t file, uint64_t block, uint64_t seed, uint64_t epoch,
                           bool shuffle);

}  // namespace hyperion::data
