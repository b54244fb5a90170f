// Caches the token ids of short words: a fixed-size, direct-mapped table, one per thread. A word hashes to
// one slot, and a new word replaces the old one, so no text can make it grow or slow down.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace hyperion::data {

class WordCache {
 public:
  static constexpr size_t kMaxBytes = 16;
  static constexpr size_t kMaxIds = 11;  // makes a slot one cache line

  struct Slot {
    uint64_t low = 0, high = 0;
    uint16_t bytes = 0;  // 0: empty
    uint16_t count = 0;
    std::array<int32_t, kMaxIds> ids;

    std::span<const int32_t> tokens() const { return {ids.data(), count}; }
  };
  static_assert(sizeof(Slot) == 64);

  // A word of 1 to kMaxBytes bytes as two integers, which with its length identify it.
  struct Key {
    explicit Key(std::string_view word) : bytes(static_cast<uint16_t>(word.size())) {
      const char* data = word.data();
      const size_t size = word.size();
      if (size >= 8) {  // the two loads overlap for words under 16 bytes
        low = load<uint64_t>(data);
        high = load<uint64_t>(data + size - 8);
      } else if (size >= 4) {
        low = load<uint32_t>(data);
        high = load<uint32_t>(data + size - 4);
      } else {
        low = load<uint8_t>(data) | uint64_t{load<uint8_t>(data + size / 2)} << 8;
        high = load<uint8_t>(data + size - 1);
      }
    }
    uint64_t low, high;
    uint16_t bytes;

   private:
    template <typename T>
    static T load(const char* data) {
      T value;
      std::memcpy(&value, data, sizeof value);
      return value;
    }
  };

  // The slot of a word. It holds that word's ids only if holds() is true.
  Slot& slot(const Key& key) {
    uint64_t hash = (key.low ^ (key.high << 29 | key.high >> 35) ^ key.bytes) * 0x9E3779B97F4A7C15;
    return slots_[(hash ^ hash >> 29) * 0xBF58476D1CE4E5B9 >> (64 - kBits)];
  }
  static bool holds(const Slot& slot, const Key& key) {
    return slot.low == key.low && slot.high == key.high && slot.bytes == key.bytes;
  }
  static void store(Slot& slot, const Key& key, std::span<const int32_t> ids) {
    if (ids.size() > kMaxIds) return;
    slot.low = key.low;
    slot.high = key.high;
    slot.bytes = key.bytes;
    slot.count = static_cast<uint16_t>(ids.size());
    std::copy(ids.begin(), ids.end(), slot.ids.begin());
  }

 private:
  static constexpr unsigned kBits = 15;  // 2 MB
  std::vector<Slot> slots_ = std::vector<Slot>(size_t{1} << kBits);
};

}  // namespace hyperion::data
