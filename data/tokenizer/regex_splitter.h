// Splits text at the matches of any other regular expression, with PCRE2. The pattern is translated from
// the dialect of Hugging Face `tokenizers` (Oniguruma): \p{L}, \p{N} and \s become the ranges of
// unicode_classes.h, and constructs with another meaning in PCRE2 (\h, \w, (?m), nested classes ...) are
// refused explicitly. Other properties, such as \p{Lu}, follow PCRE2's own Unicode version.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace hyperion::data {

class RegexSplitter {
 public:
  // `where` begins the message of the Error(kBadData) for an unusable pattern.
  RegexSplitter(std::string_view pattern, const std::string& where);

  // [begin, end) of the first match at or after `from` in valid UTF-8; never empty. Thread-safe. Throws
  // Error(kBadData) if a match takes more than ten million steps (a hostile pattern).
  std::optional<std::pair<size_t, size_t>> next(std::string_view text, size_t from) const;

 private:
  std::string where_;
  std::shared_ptr<void> code_;
};

// A pattern that matches `text` literally.
std::string quoted_pattern(std::string_view text);

}  // namespace hyperion::data
