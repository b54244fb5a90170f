// Splits text into words, within which tokens are merged: a chain of steps, each applied to the pieces of
// the previous one.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/tokenizer/regex_splitter.h"
#include "data/tokenizer/word_scanner.h"

namespace hyperion::data {

class Pretokenizer {
 public:
  // SplitPieces says which pieces of a text a split keeps: the matches of its pattern, the gaps between them.
  struct SplitPieces {
    bool matches = true, gaps = true;
  };
  // Splits at the matches of `pattern`. Errors name the place `where`.
  void add_split(std::string_view pattern, const SplitPieces& kept, const std::string& where);
  // Puts a space before a piece that does not start with one.
  void add_prefix_space();

  // Calls word(view) for each word of valid UTF-8, in order. Thread-safe. The views last for the call.
  void split(std::string_view text, const std::function<void(std::string_view)>& word) const {
    run(0, text, word);
  }

 private:
  struct RegexSplit {
    RegexSplitter splitter;
    SplitPieces kept;
  };
  struct PrefixSpace {};
  using Step = std::variant<WordScanner, RegexSplit, PrefixSpace>;

  void run(size_t step, std::string_view text, const std::function<void(std::string_view)>& word) const;

  std::vector<Step> steps_;
};

}  // namespace hyperion::data
