#include "checkpoint/finite.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include <fmt/format.h>

#include "base/counted.h"
#include "base/printable.h"
#include "base/processor.h"

namespace hyperion::checkpoint {
namespace {

// Every type encodes NaN and infinity so that they are the largest of its words, as integers, after (word
// << shift) ^ flip: the shift drops the sign, and an exponent with all bits set exceeds all others. So a
// block is scanned by two operations per word, without a branch.
template <typename Word, int kShift, Word kFlip>
inline __attribute__((always_inline)) Word highest(const std::byte* data, uint64_t words) {
  const auto spelled = [data](uint64_t i) __attribute__((always_inline)) {
    Word word;
    std::memcpy(&word, data + i * sizeof(Word), sizeof(Word));
    return static_cast<Word>(static_cast<Word>(word << kShift) ^ kFlip);
  };
  // Two maxima, so that an operation does not wait for the previous one.
  const uint64_t half = words / 2;
  Word low = 0, high = words % 2 == 0 ? Word{0} : spelled(words - 1);
  for (uint64_t i = 0; i < half; ++i) {
    low = std::max(low, spelled(i));
    high = std::max(high, spelled(half + i));
  }
  return std::max(low, high);
}

HYPERION_VECTORISED uint64_t highest_64(const std::byte* data, uint64_t words) {
  return highest<uint64_t, 1, 0>(data, words);
}
HYPERION_VECTORISED uint32_t highest_32(const std::byte* data, uint64_t words) {
  return highest<uint32_t, 1, 0>(data, words);
}
HYPERION_VECTORISED uint16_t highest_16(const std::byte* data, uint64_t words) {
  return highest<uint16_t, 1, 0>(data, words);
}
HYPERION_VECTORISED uint8_t highest_8(const std::byte* data, uint64_t words) {
  return highest<uint8_t, 1, 0>(data, words);
}
HYPERION_VECTORISED uint8_t highest_unsigned_8(const std::byte* data, uint64_t words) {
  return highest<uint8_t, 0, 0>(data, words);
}
// Types without negative zero: its word is their only NaN.
HYPERION_VECTORISED uint8_t highest_without_negative_zero(const std::byte* data, uint64_t words) {
  return highest<uint8_t, 0, 0x7f>(data, words);
}

// Words from `limit` on are not finite. Blocks with such a word are scanned word by word.
template <typename Word>
uint64_t count_words_from(Word (*highest_of)(const std::byte*, uint64_t), Word limit, const void* data,
                          uint64_t bytes) {
  constexpr uint64_t kBlock = (uint64_t{16} << 10) / sizeof(Word);
  const auto* from = static_cast<const std::byte*>(data);
  uint64_t found = 0;
  for (uint64_t at = 0, words = bytes / sizeof(Word); at < words; at += kBlock) {
    const uint64_t length = std::min(kBlock, words - at);
    const std::byte* const block = from + at * sizeof(Word);
    if (highest_of(block, length) < limit) continue;
    for (uint64_t i = 0; i < length; ++i) found += highest_of(block + i * sizeof(Word), 1) >= limit ? 1 : 0;
  }
  return found;
}

}  // namespace

uint64_t count_not_finite(Dtype dtype, const void* data, uint64_t bytes) {
  switch (dtype) {
    case Dtype::kFloat32:
    case Dtype::kComplex64:
      return count_words_from<uint32_t>(highest_32, 0xff000000, data, bytes);
    case Dtype::kBFloat16:
      return count_words_from<uint16_t>(highest_16, 0xff00, data, bytes);
    case Dtype::kFloat16:
      return count_words_from<uint16_t>(highest_16, 0xf800, data, bytes);
    case Dtype::kFloat64:
    case Dtype::kComplex128:
      return count_words_from<uint64_t>(highest_64, 0xffe0000000000000, data, bytes);
    case Dtype::kFloat8E5M2:
      return count_words_from<uint8_t>(highest_8, 0xf8, data, bytes);
    case Dtype::kFloat8E4M3FN:  // no infinity
      return count_words_from<uint8_t>(highest_8, 0xfe, data, bytes);
    case Dtype::kFloat8E4M3FNUZ:
    case Dtype::kFloat8E5M2FNUZ:
      return count_words_from<uint8_t>(highest_without_negative_zero, 0xff, data, bytes);
    case Dtype::kFloat8E8M0FNU:
      return count_words_from<uint8_t>(highest_unsigned_8, 0xff, data, bytes);
    case Dtype::kInt64:
    case Dtype::kInt32:
    case Dtype::kInt16:
    case Dtype::kInt8:
    case Dtype::kUInt8:
    case Dtype::kUInt16:
    case Dtype::kUInt32:
    case Dtype::kUInt64:
    case Dtype::kBool:
      return 0;
  }
  return 0;
}

uint64_t NotFinite::scan(const std::string& tensor, Dtype dtype, const void* data, uint64_t bytes) {
  const uint64_t count = count_not_finite(dtype, data, bytes);
  if (count > 0) add(tensor, count);
  return count;
}

void NotFinite::add(const std::string& tensor, uint64_t count) {
  auto known =
      std::find_if(tensors_.rbegin(), tensors_.rend(), [&](const auto& one) { return one.first == tensor; });
  if (known == tensors_.rend()) {
    tensors_.emplace_back(tensor, 0);
    known = tensors_.rbegin();
  }
  known->second += count;
}

uint64_t NotFinite::total() const {
  uint64_t total = 0;
  for (const auto& [name, count] : tensors_) total += count;
  return total;
}

std::string NotFinite::text() const {
  constexpr size_t kNamed = 5;
  std::string text;
  for (size_t i = 0; i < std::min(tensors_.size(), kNamed); ++i) {
    const auto& [name, count] = tensors_[i];
    text += fmt::format("{}{} ({})", i == 0 ? "" : ", ", printable(name), counted(count, "number"));
  }
  if (const size_t more = tensors_.size() - std::min(tensors_.size(), kNamed); more > 0)
    text += " and " + counted(more, "more tensor");
  return text;
}

}  // namespace hyperion::checkpoint
