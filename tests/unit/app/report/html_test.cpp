#include "app/report/html.h"

#include <catch2/catch.hpp>

namespace hyperion::report {

TEST_CASE("Text from outside never becomes markup") {
  CHECK(html_text("<script>alert('1')</script>") == "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;");
  CHECK(html_text("\" onload=\"x") == "&quot; onload=&quot;x");
  CHECK(html_text("a & b") == "a &amp; b");
}

TEST_CASE("Control bytes, turned writing and bytes that are not UTF-8 are replaced") {
  const std::string replaced = "\xEF\xBF\xBD";
  CHECK(html_text("a\x1B[31mb") == "a" + replaced + "[31mb");
  CHECK(html_text(std::string("a\0b", 3)) == "a" + replaced + "b");
  CHECK(html_text("a\u202Eb") == "a" + replaced + "b");
  CHECK(html_text("a\xFF\xC0\xAF") == "a" + replaced + replaced + replaced);
  CHECK(html_text("\xED\xA0\x80") == replaced + replaced + replaced);  // a surrogate
  CHECK(html_text("caf\u00E9 \u4E2D \U0001F600") == "caf\u00E9 \u4E2D \U0001F600");
  CHECK(html_text("tab\tline\n") == "tab\tline\n");
}

TEST_CASE("Long text is cut between characters and says so") {
  CHECK(html_text("abcdef", 3) == "abc\u2026");
  CHECK(html_text("\u4E2D\u4E2D", 2) == "\u4E2D\u2026");
  CHECK(html_text("abc", 3) == "abc");
}

}  // namespace hyperion::report
