#include "data/json_lines.h"

#include <algorithm>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "base/error.h"
#include "data/sources.h"
#include "tests/support/documents.h"

namespace hyperion::data {

using Catch::Contains;

namespace {

// A file as one block.
struct WholeFile : JsonLines {
  explicit WholeFile(const std::string& path, const TextField& field = {}, size_t line_limit = kLineLimit)
      : JsonLines(path, field, TextBlocks::kWhole, line_limit), documents(open_block(0).value()) {}
  uint64_t line(uint64_t document) const { return location(document); }
  uint64_t documents;
};

std::string sample(const std::string& path, const TextField& field = {}) {
  return sample_text(find_corpus(path)[0], field).value();
}

}  // namespace

TEST_CASE("plain and gz and zst files give the same documents in any order") {
  const test::TemporaryFolder folder;
  const std::string lines = test::json_lines(100, "doc");
  // The names say nothing: the content does.
  for (const std::string& path :
       {folder.write("plain.gz", lines), folder.write("packed.json", test::gzip(lines)),
        folder.write("other", test::zstd(lines))}) {
    WholeFile file(path);
    REQUIRE(file.documents == 100);
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
      {"PAR1\x15\x04", "is Parquet: rename it so that its name ends in .parquet"},
      {"ARROW1\0\0", "is Arrow: rename it so that its name ends in .arrow"},
      {"BZh91AY", "is bzip2, which is not read: decompress it"},
      {"\xFD"
       "7zXZ",
       "is xz, which is not read: decompress it"}};
  for (const auto& [content, text] : cases)
    CHECK_THROWS_WITH(WholeFile(folder.write("a.jsonl", content)), Contains("a.jsonl: " + text));
}

TEST_CASE("escapes and other fields and order of fields do not matter") {
  const test::TemporaryFolder folder;
  WholeFile file(
      folder.write("a.jsonl",
                   "{\"n\": [1, {\"text\": 3}], \"text\": \"tab\\t \\u00e9 \\ud83d\\ude00 \\\"q\\\"\"}\n"
                   "  {\"text\":\"\", \"meta\": null}  \r\n"
                   "{\"text\": \"last line without a newline\"}"));
  REQUIRE(file.documents == 3);
  CHECK(file.text(0) == "tab\t \xC3\xA9 \xF0\x9F\x98\x80 \"q\"");
  CHECK(file.text(1).empty());
  CHECK(file.text(2) == "last line without a newline");
}

TEST_CASE("blank lines and a byte order mark are skipped and line numbers stay right") {
  const test::TemporaryFolder folder;
  WholeFile file(
      folder.write("a.jsonl",
                   "\xEF\xBB\xBF{\"text\": \"1\"}\n\n \t\r\n{\"text\": \"4\"}\n{\"text\": \"5\"}\n\n"
                   "{\"text\": \"7\"}\n\n"));
  REQUIRE(file.documents == 4);
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
      {std::string(5000, '['), "is not valid JSON"},
      {"{", "is not valid JSON"},
      {"[{\"text\": \"a\"}]", "no object"},
      {"\"text\"", "no object"},
      {"{\"text\": 5}", "is no string"},
      {"{\"text\": [\"a\"]}", "is no string"},
  };
  for (const auto& [line, message] : cases) {
    CAPTURE(line);
    const std::string path =
        folder.write("bad.jsonl", "{\"text\": \"good\"}\n" + line + "\n{\"text\": \"good\"}\n");
    WholeFile file(path);
    CHECK(file.text(0) == "good");
    CHECK_THROWS_WITH(file.text(1),
                      Contains(path + ":2:") && Contains(message) && Contains("one JSON object per line"));
    CHECK(file.text(2) == "good");
  }
}

TEST_CASE("valid JSON in a field that is not read is skipped whatever it holds") {
  const test::TemporaryFolder folder;
  const std::string deep = std::string(3000, '[') + "{\"a\": [1, {}]}" + std::string(3000, ']');
  for (const std::string& other :
       {std::string("18446744073709551616"), std::string("-9223372036854775809"),
        std::string("[123456789012345678901234567890]"), std::string("1e400"),
        std::string("\"\\ud800 \\\"\""),
        std::string("{\"a\": [1e999, -0.0E+1, {\"b\": \"\\udc00\"}, [], {}], \"\\ud800\": null}"), deep}) {
    CAPTURE(other.substr(0, 100));
    WholeFile file(folder.write(
        "a.jsonl", "{\"n\": " + other + ", \"text\": \"o\\u006ee\"}\n{\"\\u0074ext\":\"two\",\"n\":" + other +
                       "}\n{\"n\": " + other + ", \"text\": \"a\", \"text\": \"b\"}\n{\"n\": " + other +
                       "}\n{\"text\": " + other + "}\n"));
    CHECK(file.text(0) == "one");
    CHECK(file.text(1) == "two");
    CHECK_THROWS_WITH(file.text(2), Contains("a.jsonl:3: has the field \"text\" twice"));
    CHECK_THROWS_WITH(file.text(3),
                      Contains("a.jsonl:4: has no field \"text\"") && Contains("its fields are: \"n\""));
    CHECK_THROWS_WITH(file.text(4), Contains("a.jsonl:5: is not valid JSON") ||
                                        Contains("a.jsonl:5: its \"text\" is no string"));
  }
  WholeFile file(folder.write("a.jsonl", "{\"\\\"\\ud800\": 1, \"text\": \"a\xFF\"}\n"));
  CHECK(file.text(0) == "a\xEF\xBF\xBD");
}

TEST_CASE("JSON that is not valid is refused in a field that is not read") {
  const test::TemporaryFolder folder;
  for (const std::string other :
       {"01",      "1.",          ".5",      "+1",       "1e",     "-",           "nul", "truex",
        "[1,]",    "[1 2]",       "{\"a\"}", "{\"a\":}", "{1: 2}", "{\"a\": 1,}", "[}",  "[",
        "\"\\x\"", "\"\\u12g4\"", "\"\t\"",  "\"",       "",       "1, 2",        "NaN", "1}, {\"n\": 1"}) {
    CAPTURE(other);
    // 1e400, so that the parser's own limits do not decide
    WholeFile file(folder.write("a.jsonl", "{\"big\": 1e400, \"text\": \"a\", \"n\": " + other + "}\n"));
    CHECK_THROWS_WITH(file.text(0), Contains("a.jsonl:1: is not valid JSON"));
  }
}

TEST_CASE("what stands in the place of a file of documents is named as what it is") {
  using namespace std::string_literals;
  const test::TemporaryFolder folder;
  const std::string lfs = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
  CHECK_THROWS_WITH(WholeFile(folder.write("a.jsonl.gz", lfs)),
                    Contains("a.jsonl.gz: is a pointer of Git LFS"));
  CHECK_THROWS_WITH(WholeFile(folder.write("a.jsonl", "\xFF\xFE{\0\"\0"s)),
                    Contains("a.jsonl: is text in UTF-16"));
  CHECK_THROWS_WITH(WholeFile(folder.write("a.jsonl", test::gzip("<!doctype html>"))),
                    Contains("a.jsonl: is a page"));
}

TEST_CASE("chat data are named as such with what to do") {
  const test::TemporaryFolder folder;
  for (const std::string field : {"messages", "conversations"})
    CHECK_THROWS_WITH(
        sample(folder.write("a.jsonl", "{\"id\": 1, \"" + field + "\": [{\"role\": \"user\"}]}\n"), {}),
        Contains("a.jsonl:1: is chat data (its field \"" + field + "\"") && Contains("apply_chat_template"));
}

TEST_CASE("a file that becomes shorter is an error that names file and line") {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("a.jsonl", test::json_lines(1000, "doc"));
  WholeFile file(path);
  std::filesystem::resize_file(path, 10'000);
  CHECK(file.text(0) == "doc0 ");
  CHECK_THROWS_WITH(file.text(900), Contains(path + ":901: ") && Contains("became shorter"));
}

TEST_CASE("lines are found across the blocks that are read") {
  const test::TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 40; ++i) {
    lines += "{\"text\": \"" + std::string(static_cast<size_t>(i * 9973), static_cast<char>('a' + i % 26)) +
             "\"}\n";
    lines += i % 3 == 0 ? std::string(static_cast<size_t>(i * 5000), ' ') + "\n" : "";
  }
  REQUIRE(lines.size() > 7 * (1 << 20));
  WholeFile file(folder.write("a.jsonl", lines));
  REQUIRE(file.documents == 40);
  for (int i = 39; i >= 0; --i) {
    const std::string_view text = file.text(static_cast<uint64_t>(i));
    CHECK(text.size() == static_cast<size_t>(i * 9973));
    CHECK(text.find_first_not_of(static_cast<char>('a' + i % 26)) == text.npos);
  }
  CHECK(file.line(39) == 53);
}

TEST_CASE("a line over the limit and files without documents are errors") {
  const test::TemporaryFolder folder;
  const std::string path =
      folder.write("long.jsonl", "{\"text\": \"" + std::string(3000, 'x') + "\"}\n{\"text\":\"y\"}\n");
  WholeFile file(path, {}, 1000);
  CHECK_THROWS_WITH(file.text(0), Contains(path + ":1:") && Contains("at most 1000"));
  CHECK(file.text(1) == "y");
  CHECK(WholeFile(path).text(0).size() == 3000);
  CHECK_THROWS_WITH(WholeFile(folder.write("blank", "\n \n\n")),
                    Contains("blank") && Contains("no document"));
  CHECK_THROWS_WITH(WholeFile(folder.write("empty.gz", test::gzip(""))), Contains("no document"));
  CHECK_THROWS_AS(WholeFile("/no/such/file"), Error);
}

TEST_CASE("the text comes from the field that is asked for and a missing one names those that are there") {
  const test::TemporaryFolder folder;
  const std::string path = folder.write(
      "a.jsonl", "{\"text\": \"no\", \"content\": \"yes\"}\n{\"contents\": \"a\", \"url\": 3}\n{}\n");
  WholeFile file(path, {"content", "validation.text_field"});
  CHECK(file.text(0) == "yes");
  CHECK_THROWS_WITH(file.text(1), Contains(path + ":2: has no field \"content\" (validation.text_field)") &&
                                      Contains("its fields are: \"contents\", \"url\"") &&
                                      Contains("did you mean contents?"));
  CHECK_THROWS_WITH(sample(folder.write("b.jsonl", "{}\n"), {"content", "validation.text_field"}),
                    Contains("set validation.text_field to the one with the text"));
  CHECK_THROWS_WITH(file.text(2), Contains("its fields are: none"));
}

TEST_CASE("a text field that a line has twice is refused and other fields may be there twice") {
  const test::TemporaryFolder folder;
  const std::string path = folder.write(
      "a.jsonl", "{\"text\": \"a\", \"n\": 1, \"n\": 2}\n{\"text\": \"a\", \"\\u0074ext\": \"b\"}\n");
  WholeFile file(path);
  CHECK(file.text(0) == "a");
  CHECK_THROWS_WITH(file.text(1), Contains(path + ":2: has the field \"text\" twice"));
}

TEST_CASE("bytes that are not UTF-8 are read as U+FFFD in JSON lines as in every text") {
  const test::TemporaryFolder folder;
  WholeFile file(
      folder.write("a.jsonl", "{\"text\": \"a\xFF\xFEz\"}\n{\"text\": \"\xE2\x82\", \"n\": \"\xC3\"}\n"));
  CHECK(file.text(0) == "a\xEF\xBF\xBD\xEF\xBF\xBDz");
  CHECK(file.text(1) == "\xEF\xBF\xBD");
}

TEST_CASE("a field that a later line lacks is no matter of the key that chooses the field") {
  const test::TemporaryFolder folder;
  const std::string path =
      folder.write("a.jsonl", "{\"text\": \"a\"}\n\n{\"texts\": \"b\"}\n[]\n{\"text\": 1}\n");
  WholeFile file(path, {"text", "validation.text_field", "training.text_field"});
  CHECK(file.text(0) == "a");
  CHECK_THROWS_WITH(file.text(1),
                    Contains(path + ":3: has no field \"text\" (validation.text_field, by default "
                                    "training.text_field); its fields are: \"texts\"") &&
                        Contains("did you mean texts?") && Contains(": correct or remove the line") &&
                        !Contains("set "));
  for (const uint64_t document : {2, 3})
    CHECK_THROWS_WITH(file.text(document), Contains("correct or remove the line"));
}

TEST_CASE("the first line is checked without reading the rest of a compressed file") {
  const test::TemporaryFolder folder;
  const TextField field = {"body", "training.text_field"};
  const std::string good = "\n\n{\"body\": \"" + std::string(200'000, 'x') + "\"}\n";
  const std::string wrong = "{\"text\": \"a\"}\n" + good;
  for (const auto& pack : {+[](const std::string& text) { return text; },
                           +[](const std::string& text) { return test::gzip(text); },
                           +[](const std::string& text) { return test::zstd(text); }}) {
    sample(folder.write("good", pack(good + "not JSON\n")), field);
    CHECK_THROWS_WITH(sample(folder.write("wrong", pack(wrong)), field),
                      Contains("wrong:1: has no field \"body\"") && Contains("\"text\""));
    CHECK_THROWS_WITH(sample(folder.write("blank", pack("\n \n")), field), Contains("no document"));
  }
  std::string packed = test::gzip(test::json_lines(20'000, "doc"));
  packed.resize(packed.size() / 2);  // what comes later is found when it is read
  sample(folder.write("cut", packed), {});
  CHECK_THROWS_WITH(WholeFile(folder.write("cut", packed)), Contains("ends early"));
}

TEST_CASE("a file cut into stretches has the documents and lines of the whole file") {
  const test::TemporaryFolder folder;
  std::string lines = "\xEF\xBB\xBF \n";
  for (int i = 0; i < 4000; ++i) {
    const int size = i % 1000 == 7 ? 2'500'000 : i * 7919 % 1500;  // some are longer than a stretch
    lines += "{\"text\": \"" + std::to_string(i) + std::string(static_cast<size_t>(size), 'x') + "\"}\n";
    if (i % 11 == 0) lines += i % 3 == 0 ? "\n\r\n" : std::string(static_cast<size_t>(i * 30), ' ') + "\n";
  }
  lines += "{\"text\": \"the last one\"}";
  const size_t half = lines.size() / 2;
  const std::string plain = folder.write("plain", lines);
  WholeFile whole(plain);
  REQUIRE(whole.documents == 4001);
  for (const std::string& path :
       {plain, folder.write("gz", test::gzip(lines.substr(0, half)) + test::gzip(lines.substr(half))),
        folder.write("zst", test::zstd(lines.substr(0, half)) + test::zstd(lines.substr(half)))}) {
    for (const TextBlocks cut : {TextBlocks::kStretches, TextBlocks::kSample}) {
      CAPTURE(path, static_cast<int>(cut));
      JsonLines file(path, {}, cut);
      const uint64_t stretch = cut == TextBlocks::kSample ? 65536 : LineFile::kStretch;
      const uint64_t blocks = (lines.size() + stretch - 1) / stretch;
      CHECK(file.blocks() == (path == plain ? std::optional(blocks) : std::nullopt));
      std::vector<uint64_t> first = {0}, bytes;  // by block
      uint64_t same = 0;
      for (uint64_t block = 0; const auto documents = file.open_block(block); ++block) {
        first.push_back(first.back() + *documents);
        bytes.push_back(file.bytes_after_block());
        for (uint64_t i = 0; i < *documents; ++i)
          same += file.text(i) == whole.text(first[block] + i) &&
                  file.location(i) == whole.line(first[block] + i);
      }
      REQUIRE(first.back() == whole.documents);
      REQUIRE(first.size() == blocks + 1);
      CHECK(same == whole.documents);
      CHECK(std::ranges::is_sorted(bytes, std::greater()));
      for (const uint64_t block : {blocks / 2, blocks - 1, uint64_t{0}, blocks / 3}) {  // in any order
        const uint64_t documents = file.open_block(block).value();
        REQUIRE(documents == first[block + 1] - first[block]);
        CHECK(file.bytes_after_block() == bytes[block]);
        for (uint64_t i = 0; i < documents; i += 97) {
          CHECK(file.text(i) == whole.text(first[block] + i));
          CHECK(describe_location(plain, file.location(i)) ==
                fmt::format("{}:{}", plain, whole.line(first[block] + i)));
        }
      }
      CHECK(file.open_block(blocks) == std::nullopt);
    }
  }
}

TEST_CASE("a damaged compressed file gives the stretches in front of the damage") {
  const test::TemporaryFolder folder;
  const std::string lines = test::json_lines(20'000, "doc");
  for (std::string packed : {test::gzip(lines), test::zstd(lines)}) {
    packed.resize(packed.size() / 2);
    JsonLines file(folder.write("cut", packed), {}, TextBlocks::kStretches);
    CHECK(file.open_block(0).value() > 1000);
    CHECK(file.text(7) == "doc7 doc7 doc7 doc7 doc7 doc7 doc7 doc7 ");
    for (int i = 0; i < 2; ++i)
      CHECK_THROWS_WITH(file.open_block(5), Contains("cut: the ") && Contains("ends early"));
    CHECK(file.open_block(0).value() > 1000);
    CHECK(file.text(1) == "doc1 doc1 ");
  }
}

TEST_CASE("a line over the limit is one bad document of its stretch and not kept in memory") {
  const test::TemporaryFolder folder;
  const std::string lines = "{\"text\": \"a\"}\n{\"text\": \"" + std::string(5'000'000, 'x') +
                            "\"}\n{\"text\": \"b\"}\n" + std::string(70'000, ' ') + "\n{\"n\": 1}\n";
  for (const std::string& path : {folder.write("long", lines), folder.write("long", test::gzip(lines))}) {
    JsonLines file(path, {}, TextBlocks::kStretches, 100'000);
    CHECK(file.open_block(0) == 2);
    CHECK(file.text(0) == "a");
    CHECK_THROWS_AS(file.text(1), BadDocument);
    CHECK_THROWS_WITH(file.text(1), Contains("long:2: the line is too long, at most 100000"));
    for (const uint64_t block : {1, 2, 3}) CHECK(file.open_block(block) == 0);
    CHECK(file.open_block(4) == 2);
    CHECK(file.text(0) == "b");
    CHECK_THROWS_WITH(file.text(1),
                      Contains("long:5: has no field \"text\"") && Contains("correct or remove"));
    CHECK(file.open_block(5) == std::nullopt);
    file.open_block(4);
  }
  for (const std::string& path : {folder.write("blank", " \n"), folder.write("blank", test::zstd(" \n"))})
    CHECK_THROWS_WITH(([&] {
                        JsonLines file(path, {}, TextBlocks::kStretches);
                        for (uint64_t block = 0; file.open_block(block); ++block) {
                        }
                      }()),
                      Contains("holds no document"));
}

TEST_CASE("a text may be null and in inner objects and in a field whose own name holds a dot") {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("a.jsonl",
                                        "{\"a\": {\"b\": {\"c\": \"inner\"}}, \"big\": 1e400}\n{\"a.b\": "
                                        "{\"c\": \"half\"}, \"a\": {\"b\": 1}}\n"
                                        "{\"a\": {\"b\": {\"c\": \"x\"}}, \"a.b.c\": \"own\"}\n{\"a\": "
                                        "null}\n{\"a\": {\"b\": {\"c\": null}}, \"n\": 1e400}\n"
                                        "{\"a\": {\"b\": {\"d\": \"x\"}}, \"url\": 1}\n{\"a\": {\"b.c\": "
                                        "\"1\", \"b.c\": \"2\"}}\n{\"a\": {\"b\": {\"c\": 5}}}\n");
  WholeFile file(path, {"a.b.c", "training.text_field"});
  for (const auto& [document, text] : {std::pair(0, "inner"), {1, "half"}, {2, "own"}, {3, ""}, {4, ""}})
    CHECK(file.text(static_cast<uint64_t>(document)) == text);
  CHECK_THROWS_WITH(file.text(5),
                    Contains("a.jsonl:6: has no field \"a.b.c\"") &&
                        Contains("its fields are: \"a.b.d\", \"a.b\", \"a\", \"url\"; did you mean a.b.d?"));
  CHECK_THROWS_WITH(file.text(6), Contains("a.jsonl:7: has the field \"a.b.c\" twice"));
  CHECK_THROWS_WITH(file.text(7), Contains("a.jsonl:8: its \"a.b.c\" is no string"));
  CHECK(sample(folder.write("b.jsonl", "{\"text\": null}\n{\"text\": \"\"}\n{\"text\": \"x\"}\n")) == "x");
  CHECK(sample(folder.write("b.jsonl", "{\"text\": null}\n")).empty());
  CHECK_THROWS_WITH(sample(folder.write("b.jsonl", "{\"max_stars\": 1, \"content\": \"int main() {}\"}\n")),
                    Contains("did you mean content?: set training.text_field to the one with the text"));
}

}  // namespace hyperion::data
