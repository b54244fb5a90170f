// Ids here were written by Hugging Face `tokenizers`; tests/interop/tokenizers_peer.py compares many more.
#include "data/tokenizer/tokenizer.h"

#include <thread>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "tests/unit/data/tokenizer/tokenizer_fixtures.h"

namespace hyperion::data {

using Ids = std::vector<int32_t>;

TEST_CASE("the committed tokenizers give the ids of Hugging Face") {
  const auto small = Tokenizer::load(kSmallTokenizer);
  CHECK(small->vocab_size() == 2048);
  CHECK(small->bos_id() == 2046);
  CHECK(small->eos_id() == 2047);
  const char* mixed = "  The\tIT'S we'Re 12345\r\n\r\n  na\u00efve \u4e2d\u6587 <|begin_of_text|>x";
  const char* odd = "'\u017f \u180e\u2003a";
  CHECK(small->encode("It is a truth universally acknowledged, that a single man in possession of a good "
                      "fortune, must be in "
                      "want of a wife.") ==
        Ids{1422, 363, 258,  1881, 450, 72,  1191, 567,  1778, 741, 759, 11,  333, 258, 260, 279,  295,
            540,  291, 1663, 2027, 281, 258, 574,  1730, 11,   474, 286, 291, 764, 281, 258, 1459, 13});
  CHECK(small->encode(mixed) == Ids{220, 485, 197, 40,  51,  6,   50,  351, 6,   49,   68, 220, 16,
                                    17,  18,  19,  20,  201, 198, 201, 198, 220, 284,  64, 127, 107,
                                    309, 220, 160, 116, 255, 162, 244, 229, 220, 2046, 87});
  CHECK(small->encode(odd) == Ids{6, 129, 123, 220, 157, 254, 236, 158, 222, 225, 64});
  CHECK(small->encode("", kBosAndEos) == Ids{2046, 2047});
  CHECK(small->decode(small->encode(mixed)) == mixed);

  const auto large = Tokenizer::load(HYPERION_SOURCE_DIR "/configs/tokenizers/austen_8192");
  CHECK(large->vocab_size() == 8192);
  CHECK(large->encode("It is a truth universally acknowledged, that a single man", kBosAndEos) ==
        Ids{8190, 1422, 363, 258, 1881, 7004, 2713, 11, 333, 258, 3173, 540, 8191});
}

TEST_CASE("bytes that are not UTF-8 are read as replacement characters") {
  const auto tokenizer = Tokenizer::load(kSmallTokenizer);
  CHECK(tokenizer->encode("a\xFF"
                          "b\xE2\x82") == tokenizer->encode("a\ufffdb\ufffd"));
  CHECK(tokenizer->decode(Ids{160, 116}) == "\ufffd");
  CHECK(tokenizer->decode(Ids{-1, 64, 1 << 30}) == "a");
}

TEST_CASE("a tokenizer is used by many threads at once") {
  const auto tokenizer = Tokenizer::load(kSmallTokenizer);
  const Ids expected = tokenizer->encode(kSomeText, kBosAndEos);
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (int& count : wrong)
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) count += tokenizer->encode(kSomeText, kBosAndEos) != expected;
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4, 0));
}

TEST_CASE("texts made to be slow are encoded in a moment") {
  const auto tokenizer = Tokenizer::load(kSmallTokenizer);
  for (const char* unit :
       {"a", " ", "\n", " \n", "'", "1", "<", "<|begin_of_text", "the", "\u4e2d", "\xFF", "\t!", "e\u0301"}) {
    std::string text;
    while (text.size() < (size_t{1} << 20)) text += unit;
    CHECK_FALSE(tokenizer->encode(text).empty());
  }
}

TEST_CASE("a post-processor that adds BOS is not doubled") {
  const TokenizerFolder folder;
  nlohmann::json content = folder.content();
  content["post_processor"] = nlohmann::json::parse(R"({"type": "TemplateProcessing", "pair": [],
    "single": [{"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {"<|begin_of_text|>": {"id": "x", "ids": [2046], "tokens": ["x"]}}})");
  folder.write(content);
  const auto tokenizer = Tokenizer::load(folder.path());
  CHECK(tokenizer->encode("a", kBosAndEos) == Ids{2046, 64, 2047});
  CHECK(tokenizer->encode("a") == Ids{2046, 64});
}

TEST_CASE("without tokenizer_config there is no BOS and none is added") {
  const TokenizerFolder folder;
  std::filesystem::remove(folder.path() / "tokenizer_config.json");
  const auto tokenizer = Tokenizer::load(folder.path() / "tokenizer.json");
  CHECK_FALSE(tokenizer->bos_id());
  CHECK(tokenizer->encode("a", kBosAndEos) == Ids{64});
}

TEST_CASE("tokenizer_config adds tokens that the tokenizer lacks") {
  const TokenizerFolder folder;
  write_file_atomic(folder.path() / "tokenizer_config.json",
                    R"({"eos_token": {"content": "<|end_of_text|>"}, "pad_token": "<pad>",
                                  "added_tokens_decoder": {"2049": {"content": "<x>", "lstrip": true}}})");
  const auto tokenizer = Tokenizer::load(folder.path());
  CHECK(tokenizer->vocab_size() == 2050);
  CHECK_FALSE(tokenizer->bos_id());
  CHECK(tokenizer->encode("a <x><pad>", kBosAndEos) == Ids{64, 2049, 2048, 2047});
}

TEST_CASE("a folder without a tokenizer and a missing file are errors that name them") {
  CHECK_THROWS_WITH(Tokenizer::load(HYPERION_SOURCE_DIR "/docs"),
                    Catch::Contains("docs") && Catch::Contains("tokenizer.json"));
  CHECK_THROWS_WITH(Tokenizer::load("/no/such/tokenizer.json"), Catch::Contains("/no/such/tokenizer.json"));
}

}  // namespace hyperion::data
