#include "models/args/sequence_parts.h"

#include "base/error.h"

namespace hyperion::models {

std::vector<SequenceRange> sequence_parts(int64_t length, const SequenceSplit& split) {
  const bool two = split.ranks > 1 && split.head_tail;
  const int64_t chunks = length_divisor(split.ranks, split.head_tail, /*tensor=*/1);
  if (length % chunks != 0) throw_bug("{} ranks cannot share a sequence of {} tokens", split.ranks, length);
  const auto chunk = [size = length / chunks](int64_t index) {
    return SequenceRange{index * size, (index + 1) * size};
  };
  if (!two) return {chunk(split.rank)};
  return {chunk(split.rank), chunk(chunks - 1 - split.rank)};
}

}  // namespace hyperion::models
