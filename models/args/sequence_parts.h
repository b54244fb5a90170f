// The tokens of a sequence that a context parallel rank has (parallelism.context_parallel_degree). Pure
// arithmetic.
#pragma once

#include <cstdint>
#include <vector>

namespace hyperion::models {

// Tokens that follow one another in a sequence.
struct SequenceRange {
  int64_t first = 0, end = 0;
  int64_t size() const { return end - first; }
  bool operator==(const SequenceRange&) const = default;
};

// SequenceSplit says how `ranks` ranks share each sequence, and which of them this one is.
struct SequenceSplit {
  int ranks = 1, rank = 0;
  // True: of twice as many chunks as ranks, rank r has chunk r and the one that is as far from the end: a
  // causal query attends to all tokens before it, and so all ranks have equally many pairs of query and key.
  // False: rank r has chunk r of as many chunks as ranks, and the last rank computes the most.
  bool head_tail = true;
};

// Returns the divisor of lengths of which each rank's part can be cut into `tensor` equal parts.
constexpr int64_t length_divisor(int64_t ranks, bool head_tail, int64_t tensor) {
  return (ranks > 1 && head_tail ? 2 : 1) * ranks * tensor;
}

// The parts of this rank, in their order: one, or with head_tail and several ranks two of one size. `length`
// is a multiple of length_divisor().
std::vector<SequenceRange> sequence_parts(int64_t length, const SequenceSplit& split);

}  // namespace hyperion::models
