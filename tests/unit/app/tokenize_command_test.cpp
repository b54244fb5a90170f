#include <catch2/catch.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include "app/commands.h"
#include "base/error.h"
#include "base/failpoint.h"
#include "base/files.h"
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
// read_file() refuses what looks like text in UTF-16, as tokens may.
std::string content_of(const std::filesystem::path& path) {
  const InputFile file(path);
  std::string content(file.size(), '\0');
  file.read(0, content.data(), content.size());
  return content;
}

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
  CHECK(*shard.open_block(0) == 3);  // not the empty text
  CHECK(shard.header().vocab_size == 10);
  CHECK_FALSE(shard.header().wide);
  std::vector<int64_t> all;
  for (uint64_t i = 0; i < 3; ++i) {
    std::vector<int64_t> tokens(shard.open(i));
    shard.copy(0, tokens);
    all.insert(all.end(), tokens.begin(), tokens.end());
  }
  CHECK(all == std::vector<int64_t>{8, 6, 7, 4, 9, 8, 3, 2, 1, 0, 9, 8, 6, 9});

  const auto tokenizer = data::Tokenizer::load(tokenizer_path);
  const auto batches = [&](const std::string& path) {
    data::LoaderOptions options;
    options.sources = {{.path = path}};
    options.encode = [&](std::string_view s) { return tokenizer->encode(s, data::kBosAndEos); };
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

TEST_CASE("tokenize goes on where it was killed and writes what one run writes") {
  const test::TemporaryFolder folder;
  folder.write("tok/tokenizer.json", kTokenizer);
  folder.write("tok/tokenizer_config.json", kConfig);
  const std::string tokenizer = (folder.path() / "tok").string(), text = (folder.path() / "text").string();
  for (const char* name : {"text/1.jsonl", "text/2.jsonl", "text/3.jsonl"})
    folder.write(name, "{\"text\": \"abcd ab\"}\n{\"text\": \"" + std::string(name) + "dcba\"}\n");
  // Killed while the last file is renamed: a file of three is recorded, and more is written.
  for (const auto& [format, fault, results] :
       {std::tuple("shard", "on=out-shard", std::vector{"/tokens.bin", "/documents.bin", "/index.json"}),
        {"megatron", "on=.idx", std::vector{".bin", ".idx"}}}) {
    const auto tokenize = [&](const std::string& name, const std::string& field = "text") {
      tokenize_command({(folder.path() / name).string(), tokenizer, field, {text}, format});
    };
    const std::string whole = std::string("whole-") + format, out = std::string("out-") + format;
    tokenize(whole);
    const pid_t child = ::fork();
    if (child == 0) {
      arm_faults(std::string("point=file.rename;action=kill;") + fault, 0);
      tokenize(out);
      ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    CHECK_THROWS_WITH(tokenize(out, "url"), Contains("has no field"));
    folder.write("other/1.jsonl", "{\"text\": \"a\"}\n");
    CHECK_THROWS_WITH(tokenize_command({(folder.path() / out).string(),
                                        tokenizer,
                                        "text",
                                        {(folder.path() / "other").string()},
                                        format}),
                      Contains("out-") && (Contains("beginning of other work") || Contains(".bin: exists")));
    tokenize(out);
    for (const std::string result : results)
      CHECK(content_of(folder.path() / (whole + result)) == content_of(folder.path() / (out + result)));
    CHECK_FALSE(std::filesystem::exists(folder.path() / (out + ".partial")));
    CHECK_FALSE(std::filesystem::exists(folder.path() / out / "progress.json"));
    CHECK_THROWS_WITH(tokenize(out), Contains("exists"));
  }
  // A damaged third file ends the command behind the others, which stay; and token files are copied.
  const std::string pair = (folder.path() / "whole-megatron").string(),
                    third = (folder.path() / "text/3.jsonl").string();
  const std::string content = content_of(third);
  folder.write("text/3.jsonl", content.substr(0, content.size() - 2) + "!\n");
  const auto both = [&](const std::string& name) {
    tokenize_command({(folder.path() / name).string(), tokenizer, "text", {text, pair}});
  };
  CHECK_THROWS_WITH(both("both"), Contains("3.jsonl:2"));
  CHECK(std::filesystem::exists(folder.path() / "both.partial/progress.json"));
  folder.write("text/3.jsonl", content);
  both("both");
  const std::string once = content_of(folder.path() / "whole-shard/tokens.bin");
  CHECK(content_of(folder.path() / "both/tokens.bin") == once + once);
}

}  // namespace hyperion::app
