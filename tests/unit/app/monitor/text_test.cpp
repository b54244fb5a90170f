#include "app/monitor/text.h"

#include <catch2/catch.hpp>

namespace hyperion::monitor {

TEST_CASE("Outside text keeps letters and loses whatever steers a terminal") {
  CHECK(safe_text("lr 3e-4, größe, 模型", true) == "lr 3e-4, größe, 模型");
  CHECK(safe_text("größe", false) == "gr??e");
  CHECK(safe_text("a\x1b[2J\x1b]0;title\x07"
                  "b\r\nc\td",
                  true) == "a?[2J?]0;title?b??c?d");
  CHECK(safe_text("\xC2\x9B"
                  "31m",
                  true) == "?31m");  // the control character that is ESC [
  CHECK(safe_text("\u202E"
                  "abc\u200Dd\u0301",
                  true) == "?abc?d?");
  CHECK(safe_text(std::string("\x00\x7F\xFF", 3), true) == "???");
  CHECK(safe_text("abcdef", true, 3) == "abc");
  CHECK(safe_text("模型", true, 3) == "模");
}

TEST_CASE("Columns count wide characters twice, and a cut never halves one") {
  CHECK(columns_of("a模型") == 5);
  CHECK(columns_of(std::string_view("\u28FF\u2502")) == 2);
  const TextLine line = {{"ab", Tone::kBad}, {"模型"}};
  CHECK(columns_of(line) == 6);
  CHECK(columns_of(cut(line, 5)) == 4);
  CHECK(render(cut(line, 1), true) == "\x1b[1;31ma\x1b[0m");
  CHECK(render(line, false) == "ab模型");
}

TEST_CASE("The first of LC_ALL, LC_CTYPE and LANG that is set names the encoding") {
  CHECK(is_utf8_locale("", "", "en_US.UTF-8"));
  CHECK(is_utf8_locale("", "C.utf8", "C"));
  CHECK_FALSE(is_utf8_locale("C", "", "en_US.UTF-8"));
  CHECK_FALSE(is_utf8_locale("", "", ""));
}

}  // namespace hyperion::monitor
