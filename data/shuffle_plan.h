// The plan of an epoch's order over many files: a corpus is cut into slots that are read side by side, each a
// contiguous stretch of the sorted files. Documents are drawn from all slots, so that what is read at any
// time comes from all over the corpus, with one block of each slot in memory. No I/O.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hyperion::data {

// PlannedFile holds the facts of a file that the plan needs.
struct PlannedFile {
  uint64_t bytes = 0;       // on disk, at least 1
  bool divisible = false;   // its blocks can be opened in any order, so several slots may share it
  bool sequential = false;  // its blocks are opened in ascending order (compressed text)
};

// Part `part` of the `parts` equal parts of a file's blocks.
struct CorpusPart {
  uint32_t file = 0;  // index in the list of files
  uint32_t part = 0;
  uint32_t parts = 1;
  uint64_t bytes = 0;

  bool operator==(const CorpusPart&) const = default;
};

// The largest number of slots of a corpus with sequential files, each of which keeps a decompressor's state
// and is read again from its beginning on a resume.
inline constexpr uint64_t kMaxSequentialSlots = 16;
// A file is not cut into parts of fewer bytes.
inline constexpr uint64_t kMinPartBytes = uint64_t{4} << 20;

// value * numerator / denominator, rounded down, without overflow of the product.
uint64_t scaled(uint64_t value, uint64_t numerator, uint64_t denominator);

// At most `window` slots of nearly equal bytes (as far as whole files and parts allow), none of them empty.
// Each file or part is in exactly one slot, in ascending order. `window` and the number of files are at
// least 1.
std::vector<std::vector<CorpusPart>> plan_slots(std::span<const PlannedFile> files, uint64_t window);

}  // namespace hyperion::data
