// Splits text into words without a regex library for the three common patterns: exact and fast, while a
// regex library is slower and has Unicode tables of another version.
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
  // Returns a scanner for exactly this regular expression; nullopt if it is not one of the known ones.
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
    size_t end;  // the position after it
  };
  Char char_at(std::string_view text, size_t position) const;
  bool class_at(std::string_view text, size_t position, CharClass char_class) const;
  size_t run_end(std::string_view text, size_t position, CharClass char_class) const;
  size_t space_end(std::string_view text, size_t begin) const;
  size_t gpt2_end(std::string_view text, size_t begin) const;
  size_t llama_end(std::string_view text, size_t begin) const;

  const CharClass* classes_;
  size_t max_digits_;  // maximum digits in a word: 3 for Llama 3, 1 for Qwen; 0 selects GPT-2's pattern
};

}  // namespace hyperion::data
