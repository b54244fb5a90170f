#include "data/tokenizer/nfc.h"

#include <algorithm>
#include <array>
#include <vector>

#include <utf8proc.h>

#include "base/error.h"
#include "base/utf8.h"
#include "data/tokenizer/unicode_classes.h"
#include "data/tokenizer/unicode_ranges.h"

namespace hyperion::data {
namespace {

// Characters that NFC leaves unchanged in a text of only these.
constexpr CodePointRange kInert[] = {
    {0x000, 0x2FF},   {0x400, 0x482},   {0x48A, 0x52F},   {0x2002, 0x20CF},
    {0x2190, 0x2328}, {0x2460, 0x2ADB}, {0x3000, 0x3029}, {0x3030, 0x3098},
    {0x309B, 0x9FFF}, {0xAC00, 0xD7A3}, {0xFF00, 0xFFEF},
};

uint8_t combining_class(utf8proc_int32_t c) {
  return static_cast<uint8_t>(utf8proc_get_property(c)->combining_class);
}

// Returns whether Hugging Face's normalizer treats a character as not composing, although utf8proc composes
// it.
bool stands_alone(char32_t c) {
  return (combining_class(static_cast<utf8proc_int32_t>(c)) != 0 && !contains(kNfcMarkRanges, c)) ||
         contains(kNfcUnknownRanges, c);
}

void append_decomposition(char32_t c, std::vector<utf8proc_int32_t>& points) {
  std::array<utf8proc_int32_t, 8> parts;  // a canonical decomposition has at most 4
  int boundary = 0;
  const utf8proc_ssize_t count = utf8proc_decompose_char(
      static_cast<utf8proc_int32_t>(c), parts.data(), parts.size(),
      static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE), &boundary);
  if (count < 0 || count > static_cast<utf8proc_ssize_t>(parts.size()))
    throw_bug("to_nfc: U+{:04X} has a decomposition of {} characters", static_cast<uint32_t>(c), count);
  points.insert(points.end(), parts.begin(), parts.begin() + count);
}

// Orders the marks of decomposed text, composes it and appends it to `result`; leaves `points` empty.
void append_composed(std::vector<utf8proc_int32_t>& points, std::string& result) {
  // utf8proc's own ordering of combining marks takes quadratic time on hostile text
  for (auto begin = points.begin(); begin != points.end();) {
    const auto mark = [](utf8proc_int32_t c) { return combining_class(c) != 0; };
    const auto first = std::find_if(begin, points.end(), mark);
    begin = std::find_if_not(first, points.end(), mark);
    std::ranges::stable_sort(first, begin, {}, combining_class);
  }
  const utf8proc_ssize_t count =
      utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  if (count < 0) throw_bug("to_nfc: {}", utf8proc_errmsg(count));
  for (utf8proc_ssize_t i = 0; i < count; ++i)
    append_utf8(result, static_cast<char32_t>(points[static_cast<size_t>(i)]));
  points.clear();
}

}  // namespace

bool may_change_under_nfc(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    if (is_ascii(text[i])) {
      ++i;
      continue;
    }
    const CodePoint c = decode_at(text, i);
    if (!contains(kInert, c.value)) return true;
    i += c.size;
  }
  return false;
}

std::string to_nfc(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  std::vector<utf8proc_int32_t> points;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = decode_at(text, i);
    i += c.size;
    if (stands_alone(c.value)) {
      append_composed(points, result);
      append_utf8(result, c.value);
    } else {
      append_decomposition(c.value, points);
    }
  }
  append_composed(points, result);
  return result;
}

}  // namespace hyperion::data
