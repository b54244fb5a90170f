// Byte-pair encodes one word: repeatedly merges the pair of neighbours with the lowest rank, the leftmost
// first.
#pragma once

#include <cstdint>
#include <vector>

namespace hyperion::data {

// (left id, right id) -> (rank, merged id): an open-addressing table, at most half full.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank;
    int32_t id;
  };
  static constexpr Merge kNone = {UINT32_MAX, -1};

  explicit MergeTable(size_t expected_pairs = 0);
  // Pairs beyond the expected number are allowed; the last value of a pair wins. Ids are >= 0.
  void insert(int32_t left, int32_t right, Merge merge);

  Merge find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (size_t i = (key * kMix) >> shift_;; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return slots_[i].merge;
      if (slots_[i].key == kEmpty) return kNone;
    }
  }

 private:
  struct Slot {
    uint64_t key;
    Merge merge;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};      // never a key: ids are not negative
  static constexpr uint64_t kMix = 0x9E3779B97F4A7C15;  // 2^64 / golden ratio: Fibonacci hashing
  static uint64_t key_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  void resize(unsigned bits);

  std::vector<Slot> slots_;
  size_t used_ = 0, mask_ = 0;
  unsigned shift_ = 0;
};

// Merges a word's symbols. Keeps its buffers between calls: one instance per thread.
class WordMerger {
 public:
  // Merges `symbols` in place: n^2 steps for a short word, n log n for a long one. At most 2^32 - 1 symbols.
  void merge(const MergeTable& table, std::vector<int32_t>& symbols);

 private:
  void merge_short(const MergeTable& table, std::vector<int32_t>& symbols);
  void merge_long(const MergeTable& table, std::vector<int32_t>& symbols);

  std::vector<MergeTable::Merge> pairs_;  // [i]: how symbol i merges with the next one
  std::vector<uint32_t> previous_, next_;
  std::vector<uint64_t> queue_;
};

}  // namespace hyperion::data
