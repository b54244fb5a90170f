// The content of a tokenizer file of any format: filled by the readers, used by Tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/bpe_merge.h"
#include "data/tokenizer/pretokenizer.h"

namespace hyperion::data {

// Larger than any vocabulary in use, small enough for tables by id.
constexpr int64_t kMaxTokenId = (1 << 21) - 1;
constexpr size_t kMaxFileBytes = size_t{64} << 20;  // the largest known is 35 MB
constexpr size_t kMaxAddedTokenBytes = 1024;        // bounds the time to match added tokens
// Each added token is compared with the previous ones; files in use have a few thousand.
constexpr size_t kMaxAddedTokens = 32768;

struct TokenizerSpec {
  std::unordered_map<std::string, int32_t> vocabulary;  // token as the file writes it -> id
  std::unordered_map<std::string, int32_t> words;       // bytes -> id, for tokens that represent bytes
  std::vector<std::string> bytes_by_id;                 // the bytes of each id; empty: no token
  MergeTable merges;
  bool ignore_merges = false;  // a word that is a token is not merged
  bool nfc = false;
  Pretokenizer pretokenizer;
  std::vector<AddedToken> added;
  std::vector<int32_t> prefix, suffix;  // added around every text
  std::string bos, eos;                 // content of BOS and EOS; empty: none
  bool without_bos = false;             // the files say explicitly that there is no BOS

  // Adds a token of the model. Throws Error(kBadData) for an id in use or out of range.
  void add_model_token(const std::string& name, const std::string& bytes, bool is_word, int64_t id,
                       const std::string& where);
  // Adds an added token. Its id is the model's, else the next free one, and must equal `id` unless that is
  // negative. It replaces an earlier token of the same content. Tokens of the model must be added first.
  void add_added_token(AddedToken token, int64_t id, const std::string& where);

 private:
  int64_t model_size_ = 0;
};

// Readers of `file`, the tokenizer file. They throw Error(kBadData) naming file, place and cause.
TokenizerSpec read_tokenizer_json(const std::filesystem::path& file);
TokenizerSpec read_tiktoken_ranks(const std::filesystem::path& file, std::string_view content);
// Applies the tokenizer_config.json next to a tokenizer file, as v0.2.2 does: BOS, EOS and further special
// tokens.
void apply_tokenizer_config(const std::filesystem::path& file, TokenizerSpec& spec);

}  // namespace hyperion::data
