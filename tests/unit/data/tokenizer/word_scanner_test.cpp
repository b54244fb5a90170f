#include "data/tokenizer/word_scanner.h"

#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "data/tokenizer/regex_splitter.h"

namespace hyperion::data {

namespace {

using Words = std::vector<std::string>;

Words scan(std::string_view pattern, const std::string& text) {
  Words words;
  const auto scanner = WordScanner::for_pattern(pattern);
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    end = scanner->word_end(text, begin);
    words.push_back(text.substr(begin, end - begin));
  }
  return words;
}

Words match(const RegexSplitter& splitter, const std::string& text) {
  Words words;
  size_t done = 0;
  while (const auto word = splitter.next(text, done)) {
    words.push_back(text.substr(word->first, word->second - word->first));
    done = word->second;
  }
  return words;
}

}  // namespace

TEST_CASE("GPT-2 words") {
  CHECK(scan(kGpt2Pattern, "I'll  pay 1234 yen!?\n\n ok 'S\t") ==
        Words{"I", "'ll", " ", " pay", " 1234", " yen", "!?", "\n\n", " ok", " '", "S", "\t"});
}

TEST_CASE("Llama 3 and Qwen words") {
  CHECK(scan(kLlama3Pattern, "I'LL  pay 12345 yen!?\r\n\n ok\t\n  x\u00a0y") ==
        Words{"I", "'LL", " ", " pay", " ", "123", "45", " yen", "!?\r\n\n", " ok", "\t\n", " ", " x",
              "\u00a0y"});
  CHECK(scan(kQwenPattern, "a12 (b)  ") == Words{"a", "1", "2", " (", "b", ")", "  "});
  CHECK(scan(kLlama3Pattern, "x'\u017f'\u017ft") == Words{"x", "'\u017f", "'\u017f", "t"});
  CHECK(scan(kLlama3Pattern, "\u180ea") == Words{"\u180ea"});
}

TEST_CASE("the scanner agrees with the regular expression on every short text of one character a class") {
  const Words alphabet = {"'",  "s",  "L",  "\u017f", "4", "\u0663", " ",
                          "\n", "\r", "\t", "\u3000", "!", "\u4e2d", "\u0301"};
  const size_t texts = alphabet.size() * alphabet.size() * alphabet.size() * alphabet.size();
  for (const std::string_view pattern : {kGpt2Pattern, kLlama3Pattern, kQwenPattern}) {
    const RegexSplitter splitter(pattern, "test");
    for (size_t number = 0; number < texts; ++number) {
      std::string text;
      for (size_t rest = number; rest > 0; rest /= alphabet.size()) text += alphabet[rest % alphabet.size()];
      const Words words = scan(pattern, text);
      if (const Words expected = match(splitter, text); words != expected) {
        CAPTURE(pattern, text);
        REQUIRE(words == expected);
      }
    }
  }
}

}  // namespace hyperion::data
