#include "data/tokenizer/added_tokens.h"

#include <catch2/catch.hpp>

namespace hyperion::data {

namespace {

// Pieces of text in brackets, ids as numbers.
std::string split(const AddedTokenFinder& finder, std::string_view text) {
  std::string result;
  finder.split(
      text, [&](std::string_view piece) { result += "[" + std::string(piece) + "]"; },
      [&](int32_t id) { result += std::to_string(id); });
  return result;
}

}  // namespace

TEST_CASE("the leftmost and longest added token wins") {
  AddedTokenFinder finder;
  finder.add({"<a>", 1});
  finder.add({"<a><b>", 2});
  finder.add({"a><", 3});
  CHECK(split(finder, "x<a><b>y<a>a><<a") == "[x]2[y]13[<a]");
  CHECK(split(finder, "") == "");
  CHECK(split(finder, "<a") == "[<a]");
}

TEST_CASE("lstrip and rstrip take the white space beside a token") {
  AddedTokenFinder finder;
  finder.add({"<l>", 1, true, false, false});
  finder.add({"<r>", 2, false, true, false});
  CHECK(split(finder, "a \u3000<l> b") == "[a]1[ b]");
  CHECK(split(finder, "a <r>\t\u00a0b") == "[a ]2[b]");
  CHECK(split(finder, "<r>  <l> \u4e2d <l>") == "21[ \u4e2d]1");
}

}  // namespace hyperion::data
