#include "data/tokenizer/regex_splitter.h"

#include <catch2/catch.hpp>

#include "base/error.h"

namespace hyperion::data {

TEST_CASE("classes follow the tables of tokenizers and not those of PCRE2") {
  const std::string mongolian_separator = "\u180e";  // a space to PCRE2
  CHECK_FALSE(RegexSplitter(R"(\s)", "test").next(mongolian_separator, 0));
  CHECK(RegexSplitter(R"([\S])", "test").next(mongolian_separator, 0));
  const std::string garay = "\U00010d50";  // a letter since Unicode 16
  CHECK(RegexSplitter(R"([^\P{L}])", "test").next(garay, 0));
  CHECK(RegexSplitter(R"(\p{L}+)", "test").next("12" + garay + garay, 0) == std::pair<size_t, size_t>{2, 10});
  CHECK(RegexSplitter(quoted_pattern("a.+"), "test").next("aaa.+", 0) == std::pair<size_t, size_t>{2, 5});
}

TEST_CASE("a pattern that means something else in PCRE2 is refused by what it uses") {
  for (const char* pattern :
       {R"(\h)", R"(\w+)", R"(\bx)", R"((?m:.))", R"((?s).)", R"([a&&b])", R"([a[b]])", R"([]a])",
        R"((*UTF)x)", R"(\pL)", "a\\", R"(\p{L)", R"(\Qa)", "(a", "a{2,1}", "x*", ""}) {
    CAPTURE(pattern);
    CHECK_THROWS_AS(RegexSplitter(pattern, "file.json"), Error);
    CHECK_THROWS_WITH(RegexSplitter(pattern, "file.json"), Catch::StartsWith("file.json: "));
  }
  CHECK_THROWS_WITH(RegexSplitter(R"(\h)", "f"), Catch::Contains(R"(uses \h)"));
}

TEST_CASE("a pattern that takes exponential time ends in an error") {
  const RegexSplitter splitter("(?:a|a|aa)+[xy]", "test");
  CHECK_THROWS_AS(splitter.next(std::string(5000, 'a'), 0), Error);
}

}  // namespace hyperion::data
