#include "data/split_folder.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/support/documents.h"

namespace hyperion::data {

TEST_CASE("a split is known by the word with which a name or a folder's begins") {
  for (const auto& [name, split] : {std::pair("data/train-00000-of-00010.parquet", "train"),
                                    {"train_sft-0.parquet", "train"},
                                    {"en/test/0000.parquet", "test"},
                                    {"train/test-0.parquet", "test"},
                                    {"validation.parquet", "validation"},
                                    {"dev-clean/0.parquet", "validation"},
                                    {"data/CC-MAIN-2024-10/000_00000.parquet", ""},
                                    {"testament.parquet", ""},
                                    {"latest/trains.parquet", ""}})
    CHECK(split_of(name) == split);
}

TEST_CASE("a folder of Parquet with several splits is refused with the path of each") {
  const test::TemporaryFolder folder;
  const std::string root = folder.path().string();
  for (const char* name :
       {"data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "README.md"})
    folder.write(name, "PAR1");
  CHECK(find_corpus(root).size() == 2);
  CHECK(find_corpus(root)[0].format == CorpusFormat::kParquet);
  folder.write("data/test-00000-of-00001.parquet", "PAR1");
  folder.write("data/validation/0.arrow", "PAR1");
  CHECK_THROWS_WITH(
      find_corpus(root, "--data"),
      Catch::Equals("--data " + root +
                    ": is a folder with several splits, and all of them would be read: give the path "
                    "of one: " +
                    root + "/data/test* (1 test file), " + root + "/data/train* (2 train files), " + root +
                    "/data/validation (1 validation file)"));
  CHECK(find_corpus(root + "/data/train*").size() == 2);
  CHECK(find_corpus(root + "/data/{train,test}*").size() == 3);
  CHECK(find_corpus(root + "/data/validation")[0].format == CorpusFormat::kArrow);
}

TEST_CASE("what describes a saved dataset and what was cached of it are left out") {
  const test::TemporaryFolder folder;
  for (const char* name : {"dataset_dict.json", "train/data-00000-of-00001.arrow", "train/dataset_info.json",
                           "train/state.json", "train/cache-0123456789abcdef.arrow"})
    folder.write(name, "{}");
  const auto files = find_corpus(folder.path().string());
  REQUIRE(files.size() == 1);
  CHECK(files[0].name == "train/data-00000-of-00001.arrow");
  const test::TemporaryFolder other;
  other.write("state.json", "{\"text\": \"a\"}\n");
  CHECK(find_corpus(other.path().string()).size() == 1);
}

}  // namespace hyperion::data
