#include "app/monitor/text.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/utf8.h"

namespace hyperion::monitor {
namespace {

struct Block {
  char32_t first, last;
};

// Characters of one column beyond ASCII that outside text may have: Latin, Greek, Cyrillic, punctuation,
// currencies, arrows and mathematics.
constexpr std::array kNarrow = {Block{0xA1, 0xAC},     Block{0xAE, 0x2FF},    Block{0x370, 0x377},
                                Block{0x37A, 0x37F},   Block{0x384, 0x482},   Block{0x48A, 0x52F},
                                Block{0x1E00, 0x1FFE}, Block{0x2010, 0x2027}, Block{0x2030, 0x205E},
                                Block{0x20A0, 0x20C0}, Block{0x2190, 0x22FF}};
// Characters of two columns: Hangul, Kana, ideographs, and the wide forms of ASCII.
constexpr std::array kWide = {Block{0x1100, 0x115F}, Block{0x2E80, 0x2E99}, Block{0x2E9B, 0x2EF3},
                              Block{0x3001, 0x3029}, Block{0x3030, 0x303E}, Block{0x3041, 0x3096},
                              Block{0x309B, 0x30FF}, Block{0x3105, 0x312F}, Block{0x3131, 0x318E},
                              Block{0x3190, 0x31E3}, Block{0x3400, 0x4DBF}, Block{0x4E00, 0x9FFF},
                              Block{0xA000, 0xA48C}, Block{0xAC00, 0xD7A3}, Block{0xF900, 0xFAFF},
                              Block{0xFF01, 0xFF60}, Block{0xFFE0, 0xFFE6}, Block{0x20000, 0x2FFFD}};

template <size_t N>
bool is_in(const std::array<Block, N>& blocks, char32_t c) {
  return std::ranges::any_of(blocks, [&](const Block& block) { return c >= block.first && c <= block.last; });
}

const char* colour_of(Tone tone) {
  switch (tone) {
    case Tone::kPlain:
      return "";
    case Tone::kFaint:
      return "\x1b[2m";
    case Tone::kStrong:
      return "\x1b[1m";
    case Tone::kGood:
      return "\x1b[32m";
    case Tone::kWarning:
      return "\x1b[33m";
    case Tone::kBad:
      return "\x1b[1;31m";
    case Tone::kCurve:
      return "\x1b[36m";
  }
  return "";
}

// The bytes of `text` that take at most `columns`.
size_t bytes_within(std::string_view text, int columns) {
  size_t at = 0;
  while (at < text.size()) {
    const CodePoint c = decode_at(text, at);
    columns -= is_in(kWide, c.value) ? 2 : 1;
    if (columns < 0) break;
    at += c.size;
  }
  return at;
}

}  // namespace

std::string safe_text(std::string_view text, bool utf8, int columns) {
  std::string safe;
  for (size_t at = 0; at < text.size() && columns > 0;) {
    const int size = utf8_sequence(text.substr(at));
    if (size < 0) {
      safe += '?';
      --columns;
      at += static_cast<size_t>(-size);
      continue;
    }
    const CodePoint c = decode_at(text, at);
    const bool wide = utf8 && is_in(kWide, c.value);
    if (wide && columns < 2) break;
    if ((c.value >= 0x20 && c.value < 0x7F) || wide || (utf8 && is_in(kNarrow, c.value)))
      safe += text.substr(at, c.size);
    else
      safe += '?';
    columns -= wide ? 2 : 1;
    at += c.size;
  }
  return safe;
}

int columns_of(std::string_view text) {
  int columns = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = decode_at(text, at);
    columns += is_in(kWide, c.value) ? 2 : 1;
    at += c.size;
  }
  return columns;
}

int columns_of(const TextLine& line) {
  int columns = 0;
  for (const Span& span : line) columns += columns_of(span.text);
  return columns;
}

TextLine cut(const TextLine& line, int columns) {
  TextLine result;
  for (const Span& span : line) {
    const size_t bytes = bytes_within(span.text, columns);
    if (bytes > 0) result.push_back({span.text.substr(0, bytes), span.tone});
    if (bytes < span.text.size()) break;
    columns -= columns_of(span.text);
  }
  return result;
}

std::string render(const TextLine& line, bool colours) {
  std::string text;
  for (const Span& span : line) {
    const std::string_view colour = colours ? colour_of(span.tone) : "";
    text += colour;
    text += span.text;
    if (!colour.empty()) text += "\x1b[0m";
  }
  return text;
}

bool is_utf8_locale(std::string_view lc_all, std::string_view lc_ctype, std::string_view lang) {
  std::string name(!lc_all.empty() ? lc_all : !lc_ctype.empty() ? lc_ctype : lang);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name.find("utf-8") != name.npos || name.find("utf8") != name.npos;
}

}  // namespace hyperion::monitor
