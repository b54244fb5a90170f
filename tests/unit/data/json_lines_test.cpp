#include "trainer/data/json_lines.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/unit/data/fixtures.h"

using namespace hyperion;
using Catch::Contains;

TEST_CASE("plain and gz and zst files give the same documents in any order") {
  const test::TemporaryFolder folder;
  const std::string lines = test::json_lines(100, "doc");
  // The names say nothing: the content does.
  for (const std::string& path :
       {folder.write("plain.gz", lines), folder.write("packed.json", test::gzip(lines)),
        folder.write("other", test::zstd(lines))}) {
    JsonLines file(path);
    REQUIRE(file.documents() == 100);
    CHECK(file.text(99) ==
          std::string_view("doc99 doc99 doc99 doc99 doc99 doc99 doc99 doc99 doc99 doc99 doc99 doc99 "
                           "doc99 doc99 doc99 doc99 doc99 doc99 doc99 doc99 doc99 doc99 doc99 doc99 "
                           "doc99 doc99 "));
    CHECK(file.text(0) == "doc0 ");
    CHECK(file.text(37) == "doc37 ");
    CHECK(file.line(37) == 38);
  }
}

TEST_CASE("a file in a format that is not read is named with the way to convert it") {
  const test::TemporaryFolder folder;
  const std::pair<std::string, std::string> cases[] = {
      {"PAR1\x15\x04", "is Parquet, which is not read: write it as"},
      {"ARROW1\0\0", "is Arrow, which is not read: write it as"},
      {"BZh91AY", "is bzip2, which is not read: decompress it"},
      {"\xFD"
       "7zXZ",
       "is xz, which is not read: decompress it"}};
  for (const auto& [content, text] : cases)
    CHECK_THROWS_WITH(JsonLines(folder.write("a.jsonl", content)), Contains("a.jsonl: " + text));
  CHECK_THROWS_WITH(JsonLines(folder.write("a.parquet", "PAR1")),
                    Contains("pandas.read_parquet('IN').to_json("));
}

TEST_CASE("escapes and other fields and order of fields do not matter") {
  const test::TemporaryFolder folder;
  JsonLines file(
      folder.write("a.jsonl",
                   "{\"n\": [1, {\"text\": 3}], \"text\": \"tab\\t \\u00e9 \\ud83d\\ude00 \\\"q\\\"\"}\n"
                   "  {\"text\":\"\", \"meta\": null}  \r\n"
                   "{\"text\": \"last line without a newline\"}"));
  REQUIRE(file.documents() == 3);
  CHECK(file.text(0) == "tab\t \xC3\xA9 \xF0\x9F\x98\x80 \"q\"");
  CHECK(file.text(1).empty());
  CHECK(file.text(2) == "last line without a newline");
}

TEST_CASE("blank lines and a byte order mark are skipped and line numbers stay right") {
  const test::TemporaryFolder folder;
  JsonLines file(
      folder.write("a.jsonl",
                   "\xEF\xBB\xBF{\"text\": \"1\"}\n\n \t\r\n{\"text\": \"4\"}\n{\"text\": \"5\"}\n\n"
                   "{\"text\": \"7\"}\n\n"));
  REQUIRE(file.documents() == 4);
  for (uint64_t i = 0; i < 4; ++i) CHECK(std::to_string(file.line(i)) == file.text(i));
}

TEST_CASE("a line that cannot be used is an error with file and line and remedy") {
  const test::TemporaryFolder folder;
  const std::pair<std::string, std::string> cases[] = {
      {"not json", "is not valid JSON"},
      {"{\"text\": \"abc\"", "is not valid JSON"},
      {"{\"text\": \"abc", "is not valid JSON"},
      {"{\"text\": \"a\"} trailing", "is not valid JSON"},
      {"{\"text\": \"a\", \"n\": 12x}", "is not valid JSON"},
      {"{\"text\": \"\\ud800\"}", "is not valid JSON"},
      {"{\"text\": \"\xFF\xFE\"}", "is not valid JSON"},
      {std::string(5000, '['), "is not valid JSON"},
      {"{", "is not valid JSON"},
      {"[{\"text\": \"a\"}]", "no object"},
      {"\"text\"", "no object"},
      {"{\"content\": \"a\"}", "has no field \"text\""},
      {"{}", "has no field \"text\""},
      {"{\"text\": 5}", "is no string"},
      {"{\"text\": null}", "is no string"},
      {"{\"text\": [\"a\"]}", "is no string"},
  };
  for (const auto& [line, message] : cases) {
    CAPTURE(line);
    const std::string path =
        folder.write("bad.jsonl", "{\"text\": \"good\"}\n" + line + "\n{\"text\": \"good\"}\n");
    JsonLines file(path);
    CHECK(file.text(0) == "good");
    CHECK_THROWS_WITH(file.text(1),
                      Contains(path + ":2:") && Contains(message) && Contains("one JSON object a line"));
    CHECK(file.text(2) == "good");
  }
}

TEST_CASE("a line over the limit and files without documents are errors") {
  const test::TemporaryFolder folder;
  const std::string path =
      folder.write("long.jsonl", "{\"text\": \"" + std::string(3000, 'x') + "\"}\n{\"text\":\"y\"}\n");
  JsonLines file(path, 1000);
  CHECK_THROWS_WITH(file.text(0), Contains(path + ":1:") && Contains("at most 1000"));
  CHECK(file.text(1) == "y");
  CHECK(JsonLines(path).text(0).size() == 3000);
  CHECK_THROWS_WITH(JsonLines(folder.write("blank", "\n \n\n")),
                    Contains("blank") && Contains("no document"));
  CHECK_THROWS_WITH(JsonLines(folder.write("empty.gz", test::gzip(""))), Contains("no document"));
  CHECK_THROWS_AS(JsonLines("/no/such/file"), Error);
}
