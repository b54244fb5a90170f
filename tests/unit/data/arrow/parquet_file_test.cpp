#include "data/arrow/parquet_file.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/data/arrow/arrow_test.h"

namespace hyperion::data {

TEST_CASE("a row group of a Parquet file is a block, opened in any order, with nulls as empty texts") {
  ParquetFile file(asset("small.parquet"));
  REQUIRE(file.blocks() == 2);
  CHECK(block_texts(file, 1) == Texts{"zw\u00F6lf", "five", six()});
  CHECK(file.location(2) == 6);
  CHECK(block_texts(file, 0) == Texts{"one", "", ""});
  CHECK(file.text(0) == "one");
  CHECK(file.location(0) == 1);
  CHECK_FALSE(file.open_block(2));
}

TEST_CASE("a column of Parquet is found in a struct by its dotted name") {
  ParquetFile file(asset("small.parquet"), {"meta.text"});
  CHECK(block_texts(file, 0) == Texts{"in 0", "in 1", ""});
  ParquetFile kinds(asset("small.parquet"), {"kind"});
  CHECK(block_texts(kinds, 1) == Texts{"", "b", "a"});
}

TEST_CASE("a file with a large row group is read in batches of rows, from its beginning to its end") {
  const uint64_t batch = GENERATE(1, 100, 1 << 20);
  ParquetFile file(asset("small.parquet"), {}, /*row_group_limit=*/100, /*batch_bytes=*/batch);
  CHECK_FALSE(file.blocks());
  Texts all;
  uint64_t block = 0, before = UINT64_MAX, location = 0;
  for (; const auto documents = file.open_block(block); ++block) {
    CHECK(file.bytes_after_block() < before);
    before = file.bytes_after_block();
    for (uint64_t i = 0; i < *documents; ++i) {
      all.emplace_back(file.text(i));
      CHECK(file.location(i) == ++location);
    }
  }
  CHECK(all == Texts{"one", "", "", "zw\u00F6lf", "five", six()});
  CHECK(before == 0);
  CHECK(block == (batch == 1 ? 6u : batch == 100 ? 3u : 2u));
  CHECK(block_texts(file, 0).front() == "one");         // from the beginning again
  CHECK(block_texts(file, block - 1).back() == six());  // blocks between them are not read
}

TEST_CASE("a column that is missing or holds no text is named with those that are there") {
  CHECK_THROWS_WITH(
      ParquetFile(asset("small.parquet"), {"txt"}),
      Catch::Contains("small.parquet: has no column \"txt\" (training.text_field); its columns are: \"id\" "
                      "(INT64), \"text\" (String), \"meta.text\" (String)") &&
          Catch::Contains("did you mean text?") &&
          Catch::EndsWith("set training.text_field to the one with the text"));
  CHECK_THROWS_WITH(
      ParquetFile(asset("small.parquet"), {"id"}),
      Catch::Contains("small.parquet: its column \"id\" (training.text_field) is INT64, not text"));
  CHECK_THROWS_WITH(ParquetFile(asset("small.parquet"), {"tags.list.element"}),
                    Catch::Contains("is a list of String, not text"));
}

TEST_CASE("what stands for a Parquet file or was cut off is named in one sentence") {
  const test::TemporaryFolder folder;
  const std::string whole = content_of(asset("small.parquet"));
  const auto opening = [&](const std::string& content) {
    return [&, content] { ParquetFile(folder.write("a.parquet", content)); };
  };
  CHECK_THROWS_WITH(opening("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")(),
                    Catch::Contains("a.parquet: ") && Catch::Contains("git lfs pull"));
  CHECK_THROWS_WITH(opening("<!DOCTYPE html><html>404</html>")(),
                    Catch::Contains("a.parquet: is a page of a web server"));
  CHECK_THROWS_WITH(opening("{\"text\": \"JSON lines\"}\n")(),
                    Catch::Contains("a.parquet: is no Parquet file"));
  CHECK_THROWS_WITH(opening("PAR1")(), Catch::Contains("a.parquet: is no Parquet file"));
  CHECK_THROWS_WITH(opening(whole.substr(0, whole.size() / 2))(),
                    Catch::Contains("a.parquet: is not a whole Parquet file"));
  CHECK_THROWS_WITH(opening(whole.substr(0, 300) + whole.substr(whole.size() - 300))(),
                    Catch::Contains("a.parquet: its footer cannot be read ("));
}

TEST_CASE("a damaged row group is named and the others are read") {
  const test::TemporaryFolder folder;
  std::string content = content_of(asset("small.parquet"));
  const size_t at = content.find("zw\u00F6lf");
  REQUIRE(at != content.npos);
  content.replace(at - 30, 40, 40, '\xFF');
  ParquetFile file(folder.write("a.parquet", content));
  REQUIRE(file.open_block(1) == 3);
  CHECK_THROWS_WITH(file.text(0), Catch::Contains("a.parquet: row group 1 cannot be read (") &&
                                      Catch::EndsWith("): the file is damaged, fetch or write it again"));
  CHECK(block_texts(file, 0) == Texts{"one", "", ""});
}

}  // namespace hyperion::data
