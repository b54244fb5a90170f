#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/tokenizer/regex_splitter.h"

#include <cstring>

#include <fmt/format.h>
#include <pcre2.h>

#include "base/error.h"
#include "base/utf8.h"
#include "data/tokenizer/unicode_classes.h"

namespace hyperion::data {
namespace {

constexpr uint32_t kMatchLimit = 10'000'000;
constexpr size_t kMaxPattern = 65536;  // bytes

// The inside of a bracket expression for a class, or for its complement.
std::string class_text(CharClass char_class, bool negated) {
  std::string text;
  const auto add = [&](char32_t first, char32_t last) {
    if (first <= last)
      text +=
          fmt::format("\\x{{{:X}}}-\\x{{{:X}}}", static_cast<uint32_t>(first), static_cast<uint32_t>(last));
  };
  char32_t next = 0;
  const auto add_gap = [&](char32_t end) {  // [next, end) without the surrogates, which PCRE2 refuses
    if (next < 0xD800 && end > 0xE000) {
      add(next, 0xD7FF);
      next = 0xE000;
    }
    if (end > next) add(next, end - 1);
  };
  for (const auto& [first, last] : ranges_of(char_class)) {
    if (negated)
      add_gap(first);
    else
      add(first, last);
    next = last + 1;
  }
  if (negated) add_gap(kMaxCodePoint + 1);
  return text;
}

// Walks an Oniguruma pattern and writes PCRE2's; see the header for what changes.
class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  std::string run() {
    while (position_ < pattern_.size()) step();
    return result_;
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw_data("{}: the regular expression {:?} uses {}, which is not supported", where_, pattern_, what);
  }

  bool at(std::string_view text) const { return pattern_.substr(position_, text.size()) == text; }

  void take(size_t count) {
    result_ += pattern_.substr(position_, count);
    position_ += count;
  }

  void put_class(CharClass char_class, bool negated, size_t consumed) {
    const std::string text = class_text(char_class, negated);
    result_ += in_class_ ? text : "[" + text + "]";
    position_ += consumed;
  }

  void step() {
    if (pattern_[position_] == '\\') return escape();
    if (in_class_) {
      if (at("[")) refuse("a [ inside a character class");
      if (at("&&")) refuse("&& inside a character class");
      in_class_ = !at("]");
    } else if (at("[")) {
      in_class_ = true;
      take(1);
      if (at("^")) take(1);
      if (at("]")) refuse("a character class that starts with ]");
      return;
    } else if (at("(?")) {
      for (const std::string_view group : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"})
        if (at(group)) return take(group.size());
      refuse(fmt::format("the group {}", pattern_.substr(position_, 3)));
    } else if (at("(*")) {
      refuse("the verb (*");
    }
    take(1);
  }

  void escape() {
    if (position_ + 1 == pattern_.size()) refuse("a trailing backslash");
    for (const bool negated : {false, true}) {
      const std::string_view property = negated ? "\\P" : "\\p";
      if (at(negated ? "\\S" : "\\s")) return put_class(CharClass::kSpace, negated, 2);
      if (!at(property)) continue;
      if (pattern_.substr(position_ + 2, 3) == "{L}") return put_class(CharClass::kLetter, negated, 5);
      if (pattern_.substr(position_ + 2, 3) == "{N}") return put_class(CharClass::kNumber, negated, 5);
      const size_t close = pattern_.find('}', position_);
      if (pattern_.substr(position_ + 2, 1) != "{" || close == std::string_view::npos)
        refuse("\\p without braces");
      return take(close + 1 - position_);
    }
    const char c = pattern_[position_ + 1];
    // escaped punctuation, and the letters that mean the same in both dialects
    const bool letter_or_digit = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (letter_or_digit && std::strchr("trnfdD", c) == nullptr) refuse(fmt::format("\\{}", c));
    take(2);
  }

  std::string_view pattern_;
  const std::string& where_;
  std::string result_;
  size_t position_ = 0;
  bool in_class_ = false;
};

std::string message_of(int error) {
  char text[256];
  pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof text);
  return text;
}

// The state that one thread needs to match: results, limits, and a stack for compiled code.
struct MatchState {
  MatchState() {
    pcre2_set_match_limit(context.get(), kMatchLimit);
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
  std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data{pcre2_match_data_create(1, nullptr),
                                                                      pcre2_match_data_free};
  std::unique_ptr<pcre2_match_context, void (*)(pcre2_match_context*)> context{
      pcre2_match_context_create(nullptr), pcre2_match_context_free};
  std::unique_ptr<pcre2_jit_stack, void (*)(pcre2_jit_stack*)> stack{
      pcre2_jit_stack_create(size_t{32} << 10, size_t{16} << 20, nullptr), pcre2_jit_stack_free};
};

PCRE2_SPTR units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

}  // namespace

RegexSplitter::RegexSplitter(std::string_view pattern, const std::string& where) : where_(where) {
  if (pattern.size() > kMaxPattern)
    throw_data("{}: the regular expression has {} bytes, at most {} are accepted", where, pattern.size(),
               kMaxPattern);
  const std::string translated = Translator(pattern, where).run();
  int error = 0;
  PCRE2_SIZE offset = 0;
  // ^ and $ match at every line in Oniguruma's syntax
  pcre2_code* code =
      pcre2_compile(units(translated), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK | PCRE2_MULTILINE, &error, &offset, nullptr);
  if (code == nullptr)
    throw_data("{}: the regular expression {:?} is wrong: {}", where, pattern, message_of(error));
  code_ = {code, [](void* p) { pcre2_code_free(static_cast<pcre2_code*>(p)); }};
  uint32_t matches_empty = 0;
  pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty)
    throw_data("{}: the regular expression {:?} matches the empty string, which splits nothing", where,
               pattern);
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // if it fails, the slower interpreter matches
}

std::optional<std::pair<size_t, size_t>> RegexSplitter::next(std::string_view text, size_t from) const {
  thread_local MatchState state;
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const int result = pcre2_match(code, units(text), text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY,
                                 state.data.get(), state.context.get());
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (result < 0) throw_data("{}: matching the regular expression failed: {}", where_, message_of(result));
  const PCRE2_SIZE* place = pcre2_get_ovector_pointer(state.data.get());
  return std::pair<size_t, size_t>{place[0], place[1]};
}

std::string quoted_pattern(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (std::strchr("\\^$.[]|()?*+{}", c) != nullptr && c != '\0') pattern += '\\';
    pattern += c;
  }
  return pattern;
}

}  // namespace hyperion::data
