#include <string>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/files.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/unit/data/tokenizer/tokenizer_fixtures.h"

namespace hyperion::data {

namespace {

std::string base64(const std::string& bytes) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = i; j < i + 3; ++j)
      bits = bits << 8 | (j < bytes.size() ? static_cast<uint8_t>(bytes[j]) : 0);
    for (size_t j = 0; j < 4; ++j) text += j <= bytes.size() - i ? digits[bits >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

// As many ranks as GPT-2 has: the 256 bytes, then "ab", "abc", then pairs of bytes from 0x80 on.
std::string gpt2_sized_ranks() {
  std::string file;
  int rank = 0;
  const auto add = [&](const std::string& bytes) {
    file += base64(bytes) + " " + std::to_string(rank++) + "\n";
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  add("ab");
  add("bc");
  add("abcd");
  add("abc");
  for (int i = 0; rank < 50256; ++i)
    add({static_cast<char>(0x80 + i / 4096 % 128), static_cast<char>(0x80 + i / 64 % 64),
         static_cast<char>(0x80 + i % 64)});
  return file;
}

}  // namespace

TEST_CASE("a rank file is read with the pattern and special tokens of its family") {
  const TokenizerFolder folder;
  std::filesystem::remove(folder.path() / "tokenizer.json");
  std::filesystem::remove(folder.path() / "tokenizer_config.json");
  write_file_atomic(folder.path() / "gpt2.tiktoken", gpt2_sized_ranks());
  const auto tokenizer = Tokenizer::load(folder.path());
  CHECK(tokenizer->vocab_size() == 50257);
  CHECK(tokenizer->bos_id() == 50256);
  // in "xabcd", ab merges first, then abc, then abcd: the rank of a pair is that of what it makes
  CHECK(tokenizer->encode("abcd bcab<|endoftext|>xabcdxabc", {.eos = true}) ==
        std::vector<int32_t>{258, ' ', 257, 256, 50256, 'x', 258, 'x', 259, 50256});
}

TEST_CASE("a damaged or unknown rank file is an error that names the line") {
  const TokenizerFolder folder;
  const std::filesystem::path file = folder.path() / "tokenizer.model";
  const auto failure = [&](const std::string& content) {
    write_file_atomic(file, content);
    try {
      Tokenizer::load(file);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  for (const char* line : {"YQ==", "YQ== x", "YQ== 1 ", "YQ==  1", "Y*== 1", "YQ= 1", "= 1", " 1", "==== 1",
                           "YQ== 99999999999999999999", "\x0a\x0e\x0a\x05<unk>"})
    CHECK_THAT(failure("Yg== 0\n" + std::string(line) + "\n"), Catch::Contains("tokenizer.model:"));
  CHECK_THAT(failure("YQ== 0\nYg== 0\n"), Catch::Contains("id 0 is given twice"));
  CHECK_THAT(failure("YQ== 0\nYQ== 1\n"), Catch::Contains("is there twice"));
  CHECK_THAT(failure("YQ== -1\n"), Catch::Contains("has id -1"));
  CHECK_THAT(failure("YQ== 3000000\n"), Catch::Contains("expected 0 to"));
  CHECK_THAT(failure("YQ== 0\n"), Catch::Contains("holds 1 ranks"));
  CHECK_THAT(failure(""), Catch::Contains("holds 0 ranks"));
}

}  // namespace hyperion::data
