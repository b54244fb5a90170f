#include "base/substitute.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/files.h"
#include "tests/support/temporary_folder.h"

namespace hyperion {

using namespace std::string_literals;

TEST_CASE("pointers of Git LFS and web pages and UTF-16 are told by their first bytes") {
  const std::string lfs = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
  for (const bool text : {false, true}) {
    CHECK_THAT(substitute_of(lfs, text), Catch::Contains("Git LFS") && Catch::Contains("git lfs pull"));
    for (const std::string page :
         {"<!DOCTYPE html>\n", "\n <html lang=\"en\">", "<HTML>", "\xEF\xBB\xBF<!doctype HTML",
          "<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code></Error>"})
      CHECK_THAT(substitute_of(page, text), Catch::Contains("page of a web server"));
    for (const std::string other :
         {"", "{\"text\": \"<html>\"}\n", "version = 1", "<htm", "[job]\n", "\xEF\xBB\xBF{}", "PK\x03\x04"})
      CHECK(substitute_of(other, text).empty());
  }
  for (const std::string& wide : {"\xFF\xFE{\0"s, "\xFE\xFF\0{"s, "{\0\"\0t\0e\0"s, "\0{\0\"\0t\0e"s}) {
    CHECK_THAT(substitute_of(wide), Catch::Contains("UTF-16") && Catch::Contains("iconv"));
    CHECK(substitute_of(wide, /*text=*/false).empty());  // it may be numbers
  }
}

TEST_CASE("a file of text that something else stands in place of is named as that") {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("config.json", "<html><body>404</body></html>");
  CHECK_THROWS_WITH(read_file(path), Catch::StartsWith(path + ": is a page of a web server"));
  CHECK_THAT(substitute_of(InputFile(path)), Catch::StartsWith("is a page of a web server"));
  CHECK_THROWS_WITH(read_file_or_pipe(path, 1000), Catch::StartsWith(path + ": is a page of a web server"));
}

}  // namespace hyperion
