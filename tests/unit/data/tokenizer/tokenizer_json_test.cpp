// Hostile and unsupported tokenizer files: an error that names the place, never a crash.
#include <algorithm>
#include <functional>
#include <random>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/unit/data/tokenizer/tokenizer_fixtures.h"

namespace hyperion::data {

using nlohmann::json;

namespace {

// The message with which loading fails; empty when it works.
std::string failure(const TokenizerFolder& folder) {
  try {
    Tokenizer::load(folder.path())->encode(kSomeText, kBosAndEos);
    return "";
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kBadData);
    return error.what();
  }
}

json added(const std::string& content, int64_t id) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

}  // namespace

TEST_CASE("what is wrong or unsupported in a tokenizer file is named") {
  struct Case {
    std::function<void(json&)> change;
    std::string expected;
  };
  const Case cases[] = {
      {[](json& j) { j["model"]["type"] = "WordPiece"; }, "WordPiece"},
      {[](json& j) { j["model"]["dropout"] = 0.1; }, "dropout"},
      {[](json& j) { j["model"]["byte_fallback"] = true; }, "byte_fallback"},
      {[](json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, "end_of_word_suffix"},
      {[](json& j) { j["model"]["ignore_merges"] = 1; }, "ignore_merges is 1"},
      {[](json& j) { j["model"]["vocab"] = json::array(); }, "vocab is array"},
      {[](json& j) { j["model"].erase("merges"); }, "merges is missing"},
      {[](json& j) { j["model"]["vocab"]["a"] = -3; }, "not an integer"},
      {[](json& j) { j["model"]["vocab"]["a"] = 1.5; }, "not an integer"},
      {[](json& j) { j["model"]["vocab"]["a"] = 2147483648u; }, "has id 2147483648"},
      {[](json& j) { j["model"]["vocab"]["a"] = UINT64_MAX; }, "has id"},
      {[](json& j) { j["model"]["vocab"]["a"] = 65; }, "id 65 is given twice"},
      {[](json& j) { j["model"]["vocab"][""] = 5000; }, "is empty"},
      {[](json& j) { j["model"]["merges"][3] = "one"; }, "merges[3]"},
      {[](json& j) {
         j["model"]["merges"][3] = json{"a", "b", "c"};
       },
       "merges[3]"},
      {[](json& j) {
         j["model"]["merges"][3] = json{"zz", "zz"};
       },
       "not in the vocabulary"},
      {[](json& j) { j["model"]["merges"][3] = 7; }, "merges[3] is 7"},
      {[](json& j) { j["added_tokens"][0]["id"] = 17; }, "id 17, expected 2046"},
      {[](json& j) { j["added_tokens"][0]["id"] = 1e300; }, "is 1e+300"},
      {[](json& j) { j["added_tokens"][0]["single_word"] = true; }, "single_word"},
      {[](json& j) { j["added_tokens"][0]["content"] = std::string(5000, 'x'); }, "5000 bytes"},
      {[](json& j) { j["added_tokens"] = 3; }, "added_tokens is 3"},
      {[](json& j) {
         j["normalizer"] = {{"type", "NFKC"}};
       },
       "NFKC"},
      {[](json& j) { j["pre_tokenizer"] = nullptr; }, "byte-level"},
      {[](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Contiguous"; }, "Contiguous"},
      {[](json& j) {
         j["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"Regex", "(("}};
       },
       "regular expression"},
      {[](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["type"] = "Metaspace"; }, "Metaspace"},
      {[](json& j) { j["pre_tokenizer"]["pretokenizers"].push_back(j["pre_tokenizer"]["pretokenizers"][0]); },
       "behind ByteLevel"},
      {[](json& j) {
         j["post_processor"] = {{"type", "BertProcessing"}};
       },
       "BertProcessing"},
      {[](json& j) {
         j["post_processor"] = {{"type", "TemplateProcessing"}, {"single", json::array()}};
       },
       "0 times"},
      {[](json& j) {
         j["decoder"] = {{"type", "WordPiece"}};
       },
       "WordPiece"},
      {[](json& j) {
         j["truncation"] = {{"max_length", 5}};
       },
       "truncation"},
      {[](json& j) { j = json::array(); }, "is array"},
      {[](json& j) { j["added_tokens"].push_back(added("<x>", 2048)); }, ""},
      {[](json& j) { j["added_tokens"].push_back(added("<x>", 2050)); }, "id 2050, expected 2048"},
  };
  const TokenizerFolder folder;
  const json original = folder.content();
  for (const Case& wrong : cases) {
    json content = original;
    wrong.change(content);
    folder.write(content);
    const std::string message = failure(folder);
    CAPTURE(wrong.expected, message);
    if (wrong.expected.empty())
      CHECK(message.empty());
    else
      CHECK_THAT(message, Catch::Contains(wrong.expected) && Catch::Contains("tokenizer.json"));
  }
}

TEST_CASE("deep nesting and damaged files end in an error or load") {
  const TokenizerFolder folder;
  const std::string text = folder.text();
  for (const std::string& bad :
       {std::string(), std::string("{"), std::string(1000000, '['), "{\"a\":" + std::string(100000, '{'),
        std::string("\xFF\xFE{}"), text + "x"}) {
    folder.write(bad);
    CHECK_FALSE(failure(folder).empty());
  }
  std::mt19937 random(3);
  for (int round = 0; round < 150; ++round) {
    std::string damaged = text;
    if (round % 3 == 0) damaged.resize(random() % text.size());
    // most of the file is the vocabulary: half of the damage goes to the part before it
    for (int flips = 0; flips < 3 && !damaged.empty(); ++flips)
      damaged[random() % std::min<size_t>(damaged.size(), round % 2 ? 1200 : damaged.size())] =
          static_cast<char>(random());
    folder.write(damaged);
    failure(folder);  // anything but hyperion::Error fails the test
  }
}

TEST_CASE("a damaged tokenizer_config is an error") {
  const TokenizerFolder folder;
  for (const char* bad :
       {"[]", "{\"bos_token\": 3}", "{\"bos_token\": {\"x\": 1}}", "{\"added_tokens_decoder\": {\"x\": {}}}",
        "{\"added_tokens_decoder\": {\"5\": {\"content\": \"<new>\"}}}"}) {
    write_file_atomic(folder.path() / "tokenizer_config.json", bad);
    CHECK_THAT(failure(folder), Catch::Contains("tokenizer_config.json"));
  }
}

TEST_CASE("a tokenizer's hash is of what defines the ids and not of its path or its other files") {
  const TokenizerFolder folder;
  const auto hash = [&] { return Tokenizer::load(folder.path())->hash(); };
  const auto config = [&](const std::string& text) {
    write_file_atomic(folder.path() / "tokenizer_config.json", text);
  };
  const std::string original = Tokenizer::load(kSmallTokenizer)->hash();
  CHECK(original.size() == 16);
  CHECK(hash() == original);
  const std::string names = R"("bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>")";
  config("{" + names + R"(, "chat_template": "another", "model_max_length": 7})");
  CHECK(hash() == original);
  config(R"({"eos_token": "<|end_of_text|>"})");
  CHECK(hash() != original);
  config("{" + names + R"(, "pad_token": "<|a new one|>"})");
  CHECK(hash() != original);
  config("{" + names + "}");
  folder.write(folder.text() + " ");
  CHECK(hash() != original);
}

TEST_CASE("a tokenizer says whether texts begin and end with a token") {
  const TokenizerFolder folder;
  const auto load = [&](const std::string& config) {
    std::filesystem::remove(folder.path() / "tokenizer_config.json");
    if (!config.empty()) write_file_atomic(folder.path() / "tokenizer_config.json", config);
    return Tokenizer::load(folder.path());
  };
  const auto none = load("");
  CHECK_FALSE((none->begins_texts() || none->ends_texts() || none->without_bos()));
  const auto null = load(R"({"bos_token": null, "eos_token": "<|end_of_text|>"})");
  CHECK((null->without_bos() && null->ends_texts() && !null->begins_texts()));
  json content = folder.content();  // as Llama 3's: the post-processor puts BOS before every text
  const json id = std::ranges::find_if(content["added_tokens"], [](const json& token) {
                    return token["content"] == "<|begin_of_text|>";
                  })->at("id");
  const json begin = {{"SpecialToken", {{"id", "B"}, {"type_id", 0}}}},
             text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  content["post_processor"] = {{"type", "TemplateProcessing"},
                               {"single", {begin, text}},
                               {"pair", json::array()},
                               {"special_tokens", {{"B", {{"id", "B"}, {"ids", {id}}, {"tokens", {"B"}}}}}}};
  folder.write(content);
  CHECK(load("")->begins_texts());
}

}  // namespace hyperion::data
