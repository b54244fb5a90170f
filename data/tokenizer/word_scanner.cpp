#include "data/tokenizer/word_scanner.h"

#include "base/utf8.h"

namespace hyperion::data {

const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

bool is_newline(char c) {
  return c == '\r' || c == '\n';
}

// The end of 's 't 're 've 'm 'll 'd at `begin`, or `begin`. Ignoring case, U+017F (long s) is an s too.
size_t contraction_end(std::string_view text, size_t begin, bool ignore_case) {
  const auto at = [&](size_t i) {
    const char c = i < text.size() ? text[i] : '\0';
    return ignore_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  };
  if (at(begin) != '\'') return begin;
  const char first = at(begin + 1), second = at(begin + 2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return begin + 2;
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l'))
    return begin + 3;
  if (ignore_case && first == '\xC5' && second == '\xBF') return begin + 3;
  return begin;
}

}  // namespace

std::optional<WordScanner> WordScanner::for_pattern(std::string_view regex) {
  if (regex == kGpt2Pattern) return WordScanner(0);
  if (regex == kLlama3Pattern) return WordScanner(3);
  if (regex == kQwenPattern) return WordScanner(1);
  return std::nullopt;
}

inline WordScanner::Char WordScanner::char_at(std::string_view text, size_t position) const {
  const CodePoint c = decode_at(text, position);
  return {c.value, classes_[c.value], position + c.size};
}

inline bool WordScanner::class_at(std::string_view text, size_t position, CharClass char_class) const {
  return position < text.size() && char_at(text, position).char_class == char_class;
}

inline size_t WordScanner::run_end(std::string_view text, size_t position, CharClass char_class) const {
  while (position < text.size()) {
    const Char c = char_at(text, position);
    if (c.char_class != char_class) break;
    position = c.end;
  }
  return position;
}

// \s+(?!\S)|\s+ : a run of space leaves its last character to a following word, unless it is the only one.
size_t WordScanner::space_end(std::string_view text, size_t begin) const {
  size_t last = begin, end = begin;
  while (end < text.size()) {
    const Char c = char_at(text, end);
    if (c.char_class != CharClass::kSpace) return last == begin ? end : last;
    last = end;
    end = c.end;
  }
  return end;
}

size_t WordScanner::gpt2_end(std::string_view text, size_t begin) const {
  if (const size_t end = contraction_end(text, begin, /*ignore_case=*/false); end != begin) return end;
  size_t start = begin;
  Char c = char_at(text, begin);
  if (c.value == ' ' && c.end < text.size()) {
    start = c.end;
    c = char_at(text, start);
  }
  return c.char_class == CharClass::kSpace ? space_end(text, begin) : run_end(text, start, c.char_class);
}

size_t WordScanner::llama_end(std::string_view text, size_t begin) const {
  if (const size_t end = contraction_end(text, begin, /*ignore_case=*/true); end != begin) return end;
  const Char c = char_at(text, begin);
  if (c.char_class == CharClass::kLetter) return run_end(text, c.end, CharClass::kLetter);
  if (c.char_class == CharClass::kNumber) {
    size_t end = c.end;
    for (size_t digits = 1; digits < max_digits_ && class_at(text, end, CharClass::kNumber); ++digits)
      end = char_at(text, end).end;
    return end;
  }
  if (!is_newline(text[begin]) && class_at(text, c.end, CharClass::kLetter))
    return run_end(text, c.end, CharClass::kLetter);
  const size_t symbols = c.value == ' ' ? c.end : begin;
  if (class_at(text, symbols, CharClass::kOther)) {
    size_t end = run_end(text, symbols, CharClass::kOther);
    while (end < text.size() && is_newline(text[end])) ++end;
    return end;
  }
  // \s*[\r\n]+ takes a run of space up to its last newline
  const size_t run = run_end(text, begin, CharClass::kSpace);
  for (size_t end = run; end > begin; --end)
    if (is_newline(text[end - 1])) return end;
  return space_end(text, begin);
}

}  // namespace hyperion::data
