// Letters, numbers and white space as Hugging Face `tokenizers` sees them (Unicode 16), for splitting text
// into words.
#pragma once

#include <cstdint>
#include <span>

#include "base/utf8.h"
#include "data/tokenizer/unicode_ranges.h"

namespace hyperion::data {

enum class CharClass : uint8_t { kOther, kLetter, kNumber, kSpace };

// The ascending ranges of a class; none for kOther.
std::span<const CodePointRange> ranges_of(CharClass char_class);

// The class of every code point, indexed by code point: kMaxCodePoint + 1 entries, made once.
const CharClass* char_classes();

// Whether `c` is in one of the ascending ranges.
bool contains(std::span<const CodePointRange> ranges, char32_t c);

}  // namespace hyperion::data
