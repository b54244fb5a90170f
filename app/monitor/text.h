// Text of a terminal: spans with a tone, and the columns that they take. No I/O.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hyperion::monitor {

// A Tone names the role of a span; render() decides how it looks.
enum class Tone { kPlain, kFaint, kStrong, kGood, kWarning, kBad, kCurve };

struct Span {
  std::string text;  // valid UTF-8 without control characters
  Tone tone = Tone::kPlain;
};
using TextLine = std::vector<Span>;

// Makes outside text safe for a terminal: one line of letters, digits, punctuation and ideographs. Everything
// else, such as control characters, marks that combine, what turns the direction of writing, and invalid
// UTF-8, becomes '?', and so does all that is not ASCII unless `utf8` is set. Longer than `columns`, it is
// cut.
std::string safe_text(std::string_view text, bool utf8, int columns = 200);

// The columns of safe text and of the glyphs of plots.
int columns_of(std::string_view text);
int columns_of(const TextLine& line);

// Cuts a line to `columns`.
TextLine cut(const TextLine& line, int columns);

// Returns the bytes for a terminal, with colours or without any escape sequence.
std::string render(const TextLine& line, bool colours);

// Returns whether the locale is a UTF-8 one, given LC_ALL, LC_CTYPE and LANG; "" for unset ones.
bool is_utf8_locale(std::string_view lc_all, std::string_view lc_ctype, std::string_view lang);

}  // namespace hyperion::monitor
