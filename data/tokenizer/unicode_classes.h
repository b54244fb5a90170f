// Letters, numbers and white space as defined by Hugging Face `tokenizers` (Unicode 16), for splitting text
// into words.
#pragma once

#include <cstdint>
#include <span>

namespace hyperion::data {

struct CodePointRange {
  char32_t first, last;  // both belong to it
};
enum class CharClass : uint8_t { kOther, kLetter, kNumber, kSpace };

// Returns the ascending ranges of a class; none for kOther.
std::span<const CodePointRange> ranges_of(CharClass char_class);

// Returns the class of every code point, indexed by code point: kMaxCodePoint + 1 entries, filled by the
// first call.
const CharClass* char_classes();

// Returns whether `c` is in one of the ascending ranges.
bool contains(std::span<const CodePointRange> ranges, char32_t c);

}  // namespace hyperion::data
