// Splits text into words by hand for the three patterns in common use: exact and fast, where a regex library
// would be neither (its Unicode tables are of another version).
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "data/tokenizer/unicode_classes.h"

namespace hyperion::data {

// The patterns, as regular expressions: GPT-2's, Llama 3's, Qwen's.
extern const std::string_view kGpt2Pattern;
extern const std::string_view kLlama3Pattern;
extern const std::string_view kQwenPattern;

class WordScanner {
 public:
  // A scanner for exactly this regular expression; none when it is not one of the known ones.
  static std::optional<WordScanner> for_pattern(std::string_view regex);

  // The end of the word that starts at `begin` < text.size(). `text` is valid UTF-8. Every character belongs
  // to a word. Scanning a text takes time linear in its length.
  size_t word_end(std::string_view text, size_t begin) const {
    return max_digits_ == 0 ? gpt2_end(text, begin) : llama_end(text, begin);
  }

 private:
  explicit WordScanner(size_t max_digits) : classes_(char_classes()), max_digits_(max_digits) {}

  struct Char {
    char32_t value;
    CharClass char_class;
    size_t end;  // the position behind it
  };
  Char char_at(std::string_view text, size_t position) const;
  bool class_at(std::string_view text, size_t position, CharClass char_class) const;
  size_t run_end(std::string_view text, size_t position, CharClass char_class) const;
  size_t space_end(std::string_view text, size_t begin) const;
  size_t gpt2_end(std::string_view text, size_t begin) const;
  size_t llama_end(std::string_view text, size_t begin) const;

  const CharClass* classes_;
  size_t max_digits_;  // digits in a word, Llama 3: 3, Qwen: 1; 0: GPT-2's pattern
};

}  // namespace hyperion::data
