#include "base/utf8.h"

#include <catch2/catch.hpp>

namespace hyperion {

TEST_CASE("well-formed UTF-8 is told from ill-formed") {
  for (const char* good :
       {"", "ascii", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xF4\x8F\xBF\xBF", "12345678\xC3\xA9"})
    CHECK(is_valid_utf8(good));
  for (const char* bad : {"\x80", "\xC0\x80", "\xC3", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80",
                          "\xFF", "12345678\xE2\x82"})
    CHECK_FALSE(is_valid_utf8(bad));
}

TEST_CASE("each maximal ill-formed part becomes one replacement character as in Python") {
  const std::string r = "\xEF\xBF\xBD";
  CHECK(replace_ill_formed("a\xFF"
                           "b") == "a" + r + "b");
  CHECK(replace_ill_formed("\xE2\x82") == r);
  CHECK(replace_ill_formed("\xE2\x82\xE2\x82\xAC") == r + "\xE2\x82\xAC");
  CHECK(replace_ill_formed("\xED\xA0\x80") == r + r + r);
  CHECK(replace_ill_formed("\xF0\x9F\x98x\xC0\xAF") == r + "x" + r + r);
  CHECK(replace_ill_formed("\xF1\x80\x80\xE1\x80\xC2\x62") == r + r + r + "b");
}

TEST_CASE("code points survive encoding and decoding") {
  for (const char32_t c : {0x0u, 0x7Fu, 0x80u, 0x7FFu, 0x800u, 0xFFFFu, 0x10000u, 0x10FFFFu}) {
    std::string text;
    append_utf8(text, c);
    CHECK(is_valid_utf8(text));
    CHECK(decode_at(text, 0).value == c);
    CHECK(decode_at(text, 0).size == text.size());
  }
}

}  // namespace hyperion
