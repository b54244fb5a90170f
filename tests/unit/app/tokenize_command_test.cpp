#include "app/commands.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "data/loader.h"
#include "data/token_shards.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/support/documents.h"

namespace hyperion::app {

using Catch::Contains;

namespace {

// Byte-level BPE over a few letters, with BOS and EOS.
constexpr const char* kTokenizer = R"({
  "version": "1.0",
  "added_tokens": [
    {"id": 8, "content": "<bos>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
    {"id": 9, "content": "<eos>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
  "normalizer": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
  "post_processor": null,
  "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false, "byte_fallback": false,
    "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "ab": 4, "cd": 5, "abcd": 6, "\u0120": 7},
    "merges": ["a b", "c d", "ab cd"]}})";
constexpr const char* kConfig = R"({"bos_token": "<bos>", "eos_token": "<eos>"})";

}  // namespace

TEST_CASE("tokenize writes a shard that trains like its text") {
  const test::TemporaryFolder folder;
  folder.write("tok/tokenizer.json", kTokenizer);
  folder.write("tok/tokenizer_config.json", kConfig);
  const std::string tokenizer_path = (folder.path() / "tok").string();
  folder.write("text/1.jsonl", "{\"text\": \"abcd ab\"}\n{\"text\": \"\"}\n{\"text\": \"dcba\"}\n");
  folder.write("text/2.jsonl.gz", test::gzip("{\"text\": \"abcd\"}\n"));
  const std::string text = (folder.path() / "text").string();
  const std::string out = (folder.path() / "shard").string();
  tokenize_command({out, tokenizer_path, "text", {text}});

  data::ShardSource shard(out);
  shard.verify();
  CHECK(*shard.open_block(0) == 4);
  CHECK(shard.header().vocab_size == 10);
  CHECK_FALSE(shard.header().wide);
  std::vector<int64_t> all;
  for (uint64_t i = 0; i < 4; ++i) {
    std::vector<int64_t> tokens(shard.open(i));
    shard.copy(0, tokens);
    all.insert(all.end(), tokens.begin(), tokens.end());
  }
  CHECK(all == std::vector<int64_t>{8, 6, 7, 4, 9, 8, 9, 8, 3, 2, 1, 0, 9, 8, 6, 9});

  const auto tokenizer = data::Tokenizer::load(tokenizer_path);
  const auto batches = [&](const std::string& path) {
    data::LoaderOptions options;
    options.dataset_path = path;
    options.encode = [&](std::string_view s) { return tokenizer->encode(s, true, true); };
    options.tokenizer_fingerprint = data::tokenizer_fingerprint(tokenizer_path);
    options.seq_len = 3;
    options.rows = 2;
    options.order = {.seed = 0, .shuffle = false, .repeat = false};
    data::DataLoader loader(options);
    std::vector<std::vector<int64_t>> result;
    while (auto batch = loader.next()) result.push_back(batch->labels);
    return result;
  };
  CHECK(batches(out) == batches(text));

  CHECK_THROWS_WITH(tokenize_command({out, tokenizer_path, "text", {text}}), Contains("not empty"));
  CHECK_THROWS_WITH(tokenize_command({out + "2", tokenizer_path, "text", {out}}),
                    Contains("token shard already"));
  CHECK_THROWS_WITH(tokenize_command({out + "2", tokenizer_path, "text", {"/no/such"}}),
                    Contains("/no/such"));
  folder.write("bad.jsonl", "{\"text\": 1}\n");
  CHECK_THROWS_WITH(
      tokenize_command({out + "2", tokenizer_path, "text", {(folder.path() / "bad.jsonl").string()}}),
      Contains("bad.jsonl:1:"));
  CHECK_FALSE(std::filesystem::exists(out + "2"));
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()),
                      std::filesystem::directory_iterator()) == 4);
}

}  // namespace hyperion::app
