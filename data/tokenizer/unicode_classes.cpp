#include "data/tokenizer/unicode_classes.h"

#include <algorithm>
#include <vector>

#include "base/utf8.h"
#include "data/tokenizer/unicode_ranges.h"

namespace hyperion::data {

std::span<const CodePointRange> ranges_of(CharClass char_class) {
  static constexpr std::span<const CodePointRange> kRanges[] = {
      {}, kLetterRanges, kNumberRanges, kSpaceRanges};
  return kRanges[static_cast<size_t>(char_class)];
}

const CharClass* char_classes() {
  static const std::vector<CharClass> table = [] {
    std::vector<CharClass> classes(kMaxCodePoint + 1, CharClass::kOther);
    for (const CharClass char_class : {CharClass::kLetter, CharClass::kNumber, CharClass::kSpace})
      for (const auto& [first, last] : ranges_of(char_class))
        std::fill(classes.begin() + first, classes.begin() + last + 1, char_class);
    return classes;
  }();
  return table.data();
}

bool contains(std::span<const CodePointRange> ranges, char32_t c) {
  const auto range = std::ranges::lower_bound(ranges, c, {}, &CodePointRange::last);
  return range != ranges.end() && range->first <= c;
}

}  // namespace hyperion::data
