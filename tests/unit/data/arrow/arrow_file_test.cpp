#include "data/arrow/arrow_file.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/data/arrow/arrow_test.h"

namespace hyperion::data {

TEST_CASE("a record batch of an Arrow stream or file is a block, opened in any order") {
  const std::string name = GENERATE("stream.arrow", "file.arrow");
  ArrowFile file(asset(name));
  REQUIRE(file.blocks() == 2);
  CHECK(block_texts(file, 1) == Texts{"zw\u00F6lf", "five", six()});
  CHECK(file.location(2) == 6);
  CHECK(block_texts(file, 0) == Texts{"one", "", ""});
  CHECK_FALSE(file.open_block(2));
  ArrowFile kinds(asset(name), {"kind"});  // a dictionary
  CHECK(block_texts(kinds, 1) == Texts{"", "b", "a"});
  CHECK(block_texts(kinds, 0) == Texts{"a", "b", "a"});
  ArrowFile nested(asset(name), {"meta.text"});
  CHECK(block_texts(nested, 0) == Texts{"in 0", "in 1", ""});
}

TEST_CASE("a column of an Arrow file that is missing or holds no text is named") {
  CHECK_THROWS_WITH(
      ArrowFile(asset("stream.arrow"), {"content"}),
      Catch::Contains("has no column \"content\" (training.text_field); its columns are: \"id\" "
                      "(int64), \"text\" (string), \"meta.text\" (large_string)"));
  CHECK_THROWS_WITH(ArrowFile(asset("stream.arrow"), {"id"}), Catch::Contains("is int64, not text"));
  CHECK_THROWS_WITH(ArrowFile(asset("stream.arrow"), {"tags"}), Catch::Contains("is list<"));
}

TEST_CASE("what is no Arrow file or was cut off is named in one sentence") {
  const test::TemporaryFolder folder;
  const auto opening = [&](const std::string& content) {
    ArrowFile file(folder.write("a.arrow", content));
    for (uint64_t block = 0; file.open_block(block); ++block) file.text(0);
  };
  const std::string stream = content_of(asset("stream.arrow")), file = content_of(asset("file.arrow"));
  CHECK_THROWS_WITH(opening("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"),
                    Catch::Contains("a.arrow: ") && Catch::Contains("git lfs pull"));
  CHECK_THROWS_WITH(opening("{\"text\": \"JSON lines, quite long\"}\n"),
                    Catch::Contains("a.arrow: is no Arrow file"));
  CHECK_THROWS_WITH(opening(stream.substr(0, stream.size() - 100)),
                    Catch::Contains("a.arrow: message ") && Catch::Contains("it is longer than the file"));
  CHECK_THROWS_WITH(opening(file.substr(0, file.size() - 100)),
                    Catch::Contains("a.arrow: is not a whole Arrow file"));
}

}  // namespace hyperion::data
