#include "data/sources.h"

#include <catch2/catch.hpp>
#include <sys/stat.h>

#include "base/error.h"
#include "data/token_shards.h"
#include "tests/support/documents.h"

namespace hyperion::data {
namespace fs = std::filesystem;

namespace {

std::vector<std::string> names(const std::vector<CorpusFile>& files) {
  std::vector<std::string> result;
  for (const CorpusFile& file : files) result.push_back(file.name);
  return result;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("a folder of files in a format that is not read names the format and what to do") {
  struct Refused {
    const char *name, *magic, *message;
  };
  for (const Refused& file : std::initializer_list<Refused>{
           {"a.jsonl.bz2", "BZh9", "is bzip2, which is not read: decompress it"},
           {"a.jsonl.xz", "\xFD\x37zXZ", "is xz, which is not read: decompress it"},
           {"a.jsonl.lz4", "\x04\x22\x4D\x18", "is lz4, which is not read: decompress it"},
           {"a_text_document.idx", "MMIDIDX",
            "is an index of Megatron-LM, but a_text_document.bin is not next to it"},
           {"a.zip", "PK\x03\x04", "is zip, which is not read: decompress it"}}) {
    const test::TemporaryFolder folder;
    folder.write(file.name, file.magic);
    CHECK_THROWS_WITH(find_corpus(folder.path().string()),
                      Catch::Contains(std::string(file.name) + ": ") && Catch::Contains(file.message));
  }
}

TEST_CASE("a dataset path is a file or a folder or a pattern") {
  const test::TemporaryFolder folder;
  for (const char* name : {"b.jsonl", "a.json.gz", "sub/c.jsonl.zst", "sub/c2.jsonl.zstd", "sub/d.ndjson",
                           "README.md", "sub/x.txt.gz"})
    folder.write(name, "{\"text\": \"a\"}\n");
  const int64_t one_token[] = {1};
  TokenShardWriter writer(folder.path() / "sub" / "shard", 2, "", "");
  writer.add(one_token);
  writer.finish();

  const std::string root = folder.path().string();
  const Names all = {"a.json.gz",         "b.jsonl",      "sub/c.jsonl.zst",
                     "sub/c2.jsonl.zstd", "sub/d.ndjson", "sub/shard"};
  CHECK(names(find_corpus(root)) == all);
  CHECK(names(find_corpus(root + "/")) == all);
  CHECK(names(find_corpus(root + "/README.md")) == Names{"README.md"});
  CHECK(names(find_corpus(root + "/*.json*")) == Names{"a.json.gz", "b.jsonl"});
  CHECK(names(find_corpus(root + "/{b,a}.*")) == Names{"a.json.gz", "b.jsonl"});
  CHECK(names(find_corpus(root + "/s*")) ==
        Names{"sub/c.jsonl.zst", "sub/c2.jsonl.zstd", "sub/d.ndjson", "sub/shard"});
  CHECK(names(find_corpus(root + "/sub/shard")) == Names{"shard"});
  CHECK(find_corpus(root + "/sub/shard")[0].format == CorpusFormat::kTokenShard);
  CHECK(find_corpus(root + "/b.jsonl")[0].format == CorpusFormat::kText);
}

TEST_CASE("names that begin with a dot are left out of a folder and counted unless they are given") {
  const test::TemporaryFolder folder;
  for (const char* name :
       {"a.jsonl", "._a.jsonl", ".gitattributes", ".ipynb_checkpoints/a-checkpoint.jsonl",
        "sub/.cache/huggingface/x.jsonl", "sub/.b.jsonl", "sub/b.jsonl", ".own/.c.jsonl", ".own/d.jsonl"})
    folder.write(name, "{\"text\": \"a\"}\n");
  const std::string root = folder.path().string();
  std::vector<fs::path> hidden;
  CHECK(names(find_corpus(root, "--data", &hidden)) == Names{"a.jsonl", "sub/b.jsonl"});
  CHECK(hidden.size() == 5);
  CHECK(names(find_corpus(root + "/*", "--data", &hidden)) == Names{"a.jsonl", "sub/b.jsonl"});
  CHECK(names(find_corpus(root + "/._a.jsonl")) == Names{"._a.jsonl"});
  CHECK(names(find_corpus(root + "/.own")) == Names{"d.jsonl"});
  CHECK(names(find_corpus(root + "/.own/.c.jsonl")) == Names{".c.jsonl"});
  CHECK(names(find_corpus(root + "/.*.jsonl")) == Names{"._a.jsonl"});
  CHECK(names(find_corpus(root + "/sub/.*")) == Names{".b.jsonl", ".cache/huggingface/x.jsonl"});
  CHECK(names(find_corpus(root + "/{.,}[o_]*/{.c,d}.jsonl")) == Names{".own/.c.jsonl", ".own/d.jsonl"});
  fs::remove(folder.path() / ".own" / "d.jsonl");
  CHECK_THROWS_WITH(find_corpus(root + "/.own"),
                    Catch::Contains("left out 1 file or folder whose name begins with a dot (") &&
                        Catch::Contains(".own/.c.jsonl"));
}

TEST_CASE("a dataset path without data is an error that names it") {
  const test::TemporaryFolder folder;
  CHECK_THROWS_WITH(find_corpus(folder.path().string()), Catch::Contains(folder.path().string()));
  CHECK_THROWS_WITH(find_corpus("/no/such/path"),
                    Catch::StartsWith("training.dataset_path /no/such/path: no such"));
  CHECK_THROWS_WITH(find_corpus("/no/such/path", "--data"),
                    Catch::StartsWith("--data /no/such/path: no such"));
  CHECK_THROWS_WITH(find_corpus("/no/such/*.json"), Catch::Contains("/no/such/*.json"));
  CHECK_THROWS_WITH(find_corpus("", "--data"), Catch::Contains("--data is empty"));
  folder.write("a.jsonl", "{\"text\": \"a\"}\n");
  folder.write("b.jsonl", "");
  CHECK_THROWS_WITH(find_corpus(folder.path().string()),
                    Catch::Contains("b.jsonl") && Catch::Contains("is empty"));
}

TEST_CASE("a pipe or a dangling link among the data is named and not waited for or left out") {
  const test::TemporaryFolder folder;
  folder.write("a.jsonl", "{\"text\": \"a\"}\n");
  const std::string path = (folder.path() / "b.jsonl").string();
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CHECK_THROWS_WITH(find_corpus(path), Catch::Contains("b.jsonl: is a named pipe, not a regular file"));
  CHECK_THROWS_WITH(find_corpus(folder.path().string()), Catch::Contains("b.jsonl: is a named pipe"));
  std::filesystem::remove(path);
  std::filesystem::create_symlink("nowhere", path);
  CHECK_THROWS_WITH(find_corpus(folder.path().string()), Catch::Contains("b.jsonl: cannot open"));
}

TEST_CASE("the fingerprint follows names and sizes but not the place of the data") {
  const test::TemporaryFolder here, there, other;
  here.write("d/a.jsonl", "{\"text\": \"a\"}\n");
  there.write("d/a.jsonl", "{\"text\": \"a\"}\n");
  const uint64_t base = corpus_fingerprint(find_corpus((here.path() / "d").string()));
  CHECK(base == corpus_fingerprint(find_corpus((there.path() / "d").string())));
  there.write("d/b.jsonl", "{\"text\": \"a\"}\n");
  CHECK(base != corpus_fingerprint(find_corpus((there.path() / "d").string())));
  other.write("d/a.jsonl", "{\"text\": \"ab\"}\n");
  CHECK(base != corpus_fingerprint(find_corpus((other.path() / "d").string())));
}

TEST_CASE("a source gives the tokens of any document in part or whole") {
  const test::TemporaryFolder folder;
  const auto files = find_corpus(folder.write("a.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"\"}\n"));
  const auto source = open_source(files[0], test::encode_bytes);
  REQUIRE(source->open_block(0) == 2);
  CHECK(source->open(1) == 0);  // neither BOS nor EOS
  REQUIRE(source->open(0) == 4);
  std::vector<int64_t> tokens(2);
  source->copy(1, tokens);
  CHECK(tokens == std::vector<int64_t>{'a', 'b'});
  CHECK(source->location(1) == 2);
}

}  // namespace hyperion::data
