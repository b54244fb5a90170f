#include <catch2/catch.hpp>

#include "trainer/config/load.h"

namespace hyperion::config {

namespace {

std::string times(const std::string& text, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

}  // namespace

TEST_CASE("an ordinary file passes the guard") {
  CHECK_FALSE(toml_guard_problem("").has_value());
  CHECK_FALSE(
      toml_guard_problem("# ....... \n[training]\nsteps = 10 # é 漢 😀\nlist = [\"a\", \"b\"]\n").has_value());
  CHECK_FALSE(toml_guard_problem(times("a.b.c = 1\n", 1000)).has_value());  // dots count by the line
}

TEST_CASE("deep nesting and long dotted keys are stopped whatever surrounds them") {
  CHECK(toml_guard_problem("a = " + times("[", 100000)).value() ==
        "1:205: the file has more than 200 opening brackets");
  CHECK(toml_guard_problem("a = " + times("{a=", 201)).has_value());
  CHECK(toml_guard_problem("# \"\na = " + times("[\"]\",", 201)).has_value());
  CHECK(toml_guard_problem("x = 1\na" + times(".a", 101) + " = 1").value() ==
        "2:202: the line has more than 100 dots");
  CHECK(toml_guard_problem("[" + times("a . ", 101) + "a]").has_value());
}

TEST_CASE("long lists and large files are stopped") {
  CHECK(toml_guard_problem("a = [" + times("1,", 5001) + "]").has_value());
  CHECK(toml_guard_problem(std::string(kMaxTomlBytes + 1, '\n')).has_value());
}

TEST_CASE("bytes that are not text are placed") {
  CHECK(toml_guard_problem(std::string("a = 1\nb = \0", 11)).value() ==
        "2:5: the file holds a NUL byte here");
  CHECK(toml_guard_problem("a = \"\xff\"").value() == "1:6: the file is not UTF-8 here");
  for (const char* bad :
       {"\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\x80", "\xf8\x88\x80\x80\x80"}) {
    CHECK(toml_guard_problem(bad).has_value());
  }
  for (const char* good :
       {"\xc2\x80", "\xed\x9f\xbf", "\xee\x80\x80", "\xf4\x8f\xbf\xbf", "\xf0\x90\x80\x80"}) {
    CHECK_FALSE(toml_guard_problem(good).has_value());
  }
}

}  // namespace hyperion::config
