#include "data/token_shards.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/support/documents.h"

namespace hyperion::data {

using Catch::Contains;
using I64 = std::vector<int64_t>;
namespace fs = std::filesystem;

namespace {

ShardHeader write_shard(const fs::path& folder, uint64_t vocab_size, const std::vector<I64>& documents) {
  TokenShardWriter writer(folder, vocab_size, "0123456789abcdef", "some/tokenizer");
  for (const I64& document : documents) writer.add(document);
  return writer.finish();
}

I64 read_document(ShardSource& shard, uint64_t document) {
  I64 tokens(shard.open(document));
  shard.copy(0, tokens);
  return tokens;
}

void replace_in(const fs::path& path, const std::string& from, const std::string& to) {
  std::string text = read_file(path);
  REQUIRE(text.find(from) != std::string::npos);
  write_file_atomic(path, text.replace(text.find(from), from.size(), to));
}

}  // namespace

TEST_CASE("a shard gives back its documents in both widths") {
  const test::TemporaryFolder folder;
  const std::vector<I64> documents = {{1, 2, 65535}, {}, {7}, I64(1000, 3)};
  for (const uint64_t vocab_size : {65536, 65537, 128256}) {
    const fs::path path = folder.path() / std::to_string(vocab_size);
    const ShardHeader header = write_shard(path, vocab_size, documents);
    CHECK(header.wide == (vocab_size > 65536));
    CHECK(header.tokens == 1004);
    CHECK(fs::file_size(path / "tokens.bin") == 1004 * (vocab_size > 65536 ? 4 : 2));
    CHECK(fs::file_size(path / "documents.bin") == 4 * 8);
    CHECK(is_token_shard(path));
    ShardSource shard(path);
    REQUIRE(shard.open_block(0) == 4);
    for (uint64_t i : {3, 0, 2, 1}) CHECK(read_document(shard, i) == documents[i]);
    shard.open(0);
    I64 part(2);
    shard.copy(1, part);
    CHECK(part == I64{2, 65535});
    CHECK_NOTHROW(shard.verify());
    CHECK(shard.header().tokenizer_path == "some/tokenizer");
  }
}

TEST_CASE("a shard written by hand after the header comment is read") {
  const test::TemporaryFolder folder;
  const uint16_t tokens[] = {5, 6, 7};
  const uint64_t ends[] = {1, 3};
  folder.write("s/tokens.bin", {reinterpret_cast<const char*>(tokens), sizeof(tokens)});
  folder.write("s/documents.bin", {reinterpret_cast<const char*>(ends), sizeof(ends)});
  folder.write(
      "s/index.json",
      R"({"format": "hyperion-token-shard", "version": 1, "dtype": "uint16", "tokens": 3, "documents": 2,
                   "vocab_size": 8, "tokenizer": ""})");
  ShardSource shard(folder.path() / "s");
  CHECK(read_document(shard, 0) == I64{5});
  CHECK(read_document(shard, 1) == I64{6, 7});
}

TEST_CASE("a damaged shard is an error that names file and field") {
  const test::TemporaryFolder folder;
  const fs::path path = folder.path() / "s";
  const auto damaged = [&](const std::string& from, const std::string& to) {
    fs::remove_all(path);
    write_shard(path, 100, {{1, 2}, {3, 4, 5}});
    replace_in(path / "index.json", from, to);
    ShardSource shard(path);
  };
  CHECK_THROWS_WITH(damaged("\"version\": 1", "\"version\": 2"),
                    Contains("index.json") && Contains("version is 2"));
  CHECK_THROWS_WITH(damaged("uint16", "float8"), Contains("dtype is \"float8\""));
  CHECK_THROWS_WITH(damaged("\"tokens\": 5", "\"tokens\": 0"), Contains("tokens is 0"));
  CHECK_THROWS_WITH(damaged("\"tokens\": 5", "\"tokens\": -1"), Contains("tokens is -1"));
  CHECK_THROWS_WITH(damaged("\"tokens\": 5", "\"tokens\": 6"), Contains("tokens.bin is 10 bytes"));
  CHECK_THROWS_WITH(damaged("\"tokens\": 5", "\"tokens\": 18446744073709551615"), Contains("tokens is"));
  CHECK_THROWS_WITH(damaged("\"documents\": 2", "\"documents\": 3"), Contains("documents.bin is 16 bytes"));
  CHECK_THROWS_WITH(damaged("\"vocab_size\": 100", "\"vocab_size\": 70000"), Contains("vocab_size"));
  CHECK_THROWS_WITH(damaged("\"vocab_size\"", "\"vocab\""), Contains("vocab_size is missing"));
  CHECK_THROWS_WITH(damaged("\"tokenizer\"", "\"tok\""), Contains("tokenizer is missing"));
  CHECK_THROWS_WITH(damaged("{", "["), Contains("not valid JSON"));
  CHECK_THROWS_WITH(damaged("\"documents_xxh3\": \"", "\"documents_xxh3\": \"0"),
                    Contains("documents.bin") && Contains("checksum"));
}

TEST_CASE("a document index that makes no sense is an error") {
  const test::TemporaryFolder folder;
  const fs::path path = folder.path() / "s";
  const auto with_ends = [&](std::vector<uint64_t> ends) {
    fs::remove_all(path);
    write_shard(path, 100, {{1, 2}, {3, 4, 5}});
    std::string text = read_file(path / "index.json");
    write_file_atomic(path / "index.json", text.substr(0, text.find(",\n  \"tokens_xxh3\"")) + "}");
    write_file_atomic(path / "documents.bin", {reinterpret_cast<const char*>(ends.data()), ends.size() * 8});
    ShardSource shard(path);
  };
  CHECK_NOTHROW(with_ends({4, 5}));
  CHECK_THROWS_WITH(with_ends({2, 4}), Contains("ends at token 4") && Contains("says 5"));
  CHECK_THROWS_WITH(with_ends({~0ull, 5}), Contains("document 2 ends at token 5"));
  CHECK_THROWS_WITH(with_ends({2, ~0ull}), Contains("says 5"));
}

TEST_CASE("a shard whose files become shorter is an error that names file and document") {
  const test::TemporaryFolder folder;
  const fs::path path = folder.path() / "shard";
  write_shard(path, 300, std::vector<I64>(2000, I64(50, 3)));
  ShardSource shard(path);
  fs::resize_file(path / "tokens.bin", 1000);
  CHECK(read_document(shard, 3) == I64(50, 3));
  CHECK_THROWS_WITH(read_document(shard, 1500),
                    Contains("document 1501") && Contains("tokens.bin") && Contains("became shorter"));
  fs::resize_file(path / "documents.bin", 64);
  CHECK_THROWS_WITH(shard.open(1500), Contains("document 1501") && Contains("documents.bin"));
}

TEST_CASE("damaged tokens are found by verify and those outside the vocabulary on reading") {
  const test::TemporaryFolder folder;
  const fs::path path = folder.path() / "s";
  write_shard(path, 100, {{1, 2, 3}});
  write_file_atomic(path / "tokens.bin", std::string("\x01\x00\x02\x00\x63\x00", 6));
  ShardSource in_range(path);
  CHECK(read_document(in_range, 0) == I64{1, 2, 99});
  CHECK_THROWS_WITH(in_range.verify(), Contains("tokens.bin") && Contains("checksum"));
  write_file_atomic(path / "tokens.bin", std::string("\x01\x00\x02\x00\x64\x00", 6));
  ShardSource outside(path);
  CHECK_THROWS_WITH(read_document(outside, 0), Contains("token 100") && Contains("100 entries"));
}

TEST_CASE("a shard appears whole or not at all and never replaces data") {
  const test::TemporaryFolder folder;
  const fs::path path = folder.path() / "s";
  {
    TokenShardWriter writer(path, 10, "", "");
    writer.add(I64{1});
    CHECK_FALSE(fs::exists(path));
  }
  CHECK(fs::is_empty(folder.path()));  // dropped without finish()
  {
    TokenShardWriter writer(path, 10, "", "");
    CHECK_THROWS_WITH(writer.finish(), Contains("no tokens"));
    CHECK_THROWS_AS(writer.add(I64{10}), Error);
    CHECK_THROWS_AS(writer.add(I64{-1}), Error);
  }
  fs::create_directories(path);
  write_shard(path.string() + "/", 10, {{1}});  // an empty folder is fine
  CHECK(is_token_shard(path));
  CHECK_THROWS_WITH(write_shard(path, 10, {{2}}), Contains("not empty"));
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);
  CHECK_THROWS_AS(TokenShardWriter("/proc/no/such/place", 10, "", ""), Error);
}

TEST_CASE("the tokenizer fingerprint follows the file and not its folder") {
  const test::TemporaryFolder folder;
  const std::string file = folder.write("a/tokenizer.json", "{}");
  folder.write("b/tokenizer.json", "{}");
  folder.write("c/tokenizer.json", "{ }");
  const std::string a = tokenizer_fingerprint(folder.path() / "a");
  CHECK(a.size() == 16);
  CHECK(a == tokenizer_fingerprint(file));
  CHECK(a == tokenizer_fingerprint(folder.path() / "b"));
  CHECK(a != tokenizer_fingerprint(folder.path() / "c"));
  CHECK_THROWS_AS(tokenizer_fingerprint(folder.path()), Error);
}

}  // namespace hyperion::data
