#include "data/tokenizer/nfc.h"

#include <catch2/catch.hpp>

#include "base/utf8.h"

namespace hyperion::data {

TEST_CASE("text is composed and its marks are put in order") {
  CHECK(to_nfc("e\u0301te\u0301") == "\u00e9t\u00e9");
  CHECK(to_nfc("q\u0307\u0323") == "q\u0323\u0307");
  CHECK(to_nfc("\u212b\u2126") == "\u00c5\u03a9");
  CHECK(to_nfc("\u1112\u1161\u11ab") == "\ud55c");
  CHECK(to_nfc("\u0344") == "\u0308\u0301");
  CHECK(to_nfc("a\u0898\u0301") ==
        "a\u0898\u0301");  // a mark since Unicode 14: stands alone, as in tokenizers
  CHECK(to_nfc("\u0958") == "\u0915\u093c");
  CHECK(to_nfc(std::string("a\0b", 3)) == std::string("a\0b", 3));
}

TEST_CASE("characters that skip normalisation are ones it leaves alone") {
  for (char32_t c = 0; c <= kMaxCodePoint; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    if (!may_change_under_nfc(text) && to_nfc(text) != text) {
      CAPTURE(static_cast<uint32_t>(c));
      REQUIRE(to_nfc(text) == text);
    }
  }
  CHECK_FALSE(may_change_under_nfc(
      "Caf\u00e9, \u041c\u043e\u0441\u043a\u0432\u0430 \u4e2d\u6587 \u304c \ud55c\uad6d"));
  CHECK(may_change_under_nfc("e\u0301"));
}

TEST_CASE("a megabyte of combining marks in the worst order takes a moment") {
  std::string text = "a";
  for (int i = 0; i < 250000; ++i) text += "\u0301";
  for (int i = 0; i < 250000; ++i) text += "\u0323";
  CHECK(to_nfc(text).starts_with("\u1ea1\u0323"));
}

}  // namespace hyperion::data
