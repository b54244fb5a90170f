// A Tokenizer converts text to token ids and back, equal id for id to Hugging Face `tokenizers` for
// byte-level BPE (GPT-2, Llama 3, Qwen), read from a tokenizer.json or from a tiktoken rank file.
// docs/tokenizer.md lists what is supported and what is refused.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/vocabulary.h"

namespace hyperion::data {

// TextEnds says which tokens encode() puts before and after a text.
struct TextEnds {
  bool bos = false, eos = false;
};
inline constexpr TextEnds kBosAndEos = {.bos = true, .eos = true};

class Tokenizer {
 public:
  // `path` is a folder that holds tokenizer.json (or a tokenizer.model / *.tiktoken rank file), or one such
  // file. tokenizer_config.json in the same folder, if any, names BOS and EOS. Throws Error(kBadData)
  // naming file and cause.
  static std::unique_ptr<Tokenizer> load(const std::filesystem::path& path);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Returns the ids of `text`, with the tokens of `added`; special tokens in the text are recognized. BOS or
  // EOS is not added if the file's own post-processor already adds it (as in v0.2.2's wrapper: never doubled)
  // or the vocabulary has none (Qwen has no BOS). Bytes that are not UTF-8 are read as
  // U+FFFD, one per maximal ill-formed part, like Python's decode(errors="replace"). Thread-safe: each call
  // borrows its own word cache. Linear in the length of the text, times the log of its longest word.
  std::vector<int32_t> encode(std::string_view text, const TextEnds& added = {}) const;

  // Returns the text of `ids`, special tokens included (HF's skip_special_tokens=False). Ids without a
  // token are skipped, as in HF; bytes that are not UTF-8 become U+FFFD. Thread-safe.
  std::string decode(std::span<const int32_t> ids) const;

  // One more than the largest id in use, including added tokens: the rows that the model's embedding needs.
  int64_t vocab_size() const { return static_cast<int64_t>(spec_.bytes_by_id.size()); }

  std::optional<int32_t> bos_id() const { return bos_; }
  std::optional<int32_t> eos_id() const { return eos_; }
  // Returns whether encode() with kBosAndEos adds a token before or after a text: BOS or EOS, or a
  // token of the file's post-processor.
  bool begins_texts() const { return bos_ || !spec_.prefix.empty(); }
  bool ends_texts() const { return eos_ || !spec_.suffix.empty(); }
  // Returns whether the vocabulary explicitly has no BOS: "bos_token": null, or a tiktoken family without
  // one.
  bool without_bos() const { return spec_.without_bos; }

  // 16 hex digits, a hash of what defines the ids: the tokenizer file's bytes and the additions of
  // tokenizer_config.json (BOS, EOS, further tokens). Equal for copies, whatever their paths.
  const std::string& hash() const { return hash_; }

 private:
  struct Scratch;
  Tokenizer(TokenizerSpec spec, std::string hash);
  void encode_piece(std::string_view text, Scratch& scratch) const;
  void encode_word(std::string_view word, Scratch& scratch) const;
  void merge_word(std::string_view word, Scratch& scratch) const;

  TokenizerSpec spec_;
  std::string hash_;
  std::array<int32_t, 256> byte_ids_;  // -1: no token
  size_t max_word_bytes_ = 0;          // the longest word of the vocabulary
  AddedTokenFinder raw_tokens_, normalized_tokens_;
  std::optional<int32_t> bos_, eos_;
  bool adds_bos_ = false, adds_eos_ = false;  // whether the file's post-processor adds them
  mutable std::mutex mutex_;                  // guards pool_
  mutable std::vector<std::unique_ptr<Scratch>> pool_;
};

// The existing files of the tokenizer at `path` (as for load()), name -> content, to export with a model's
// weights. Empty if there is no tokenizer.
std::map<std::string, std::string> tokenizer_files(const std::filesystem::path& path);

// Warns about BOS and EOS if texts get none, naming the file to add and the effect on packing. `path` is
// where the tokenizer was loaded from.
void warn_of_missing_tokens(const Tokenizer& tokenizer, const std::filesystem::path& path);

}  // namespace hyperion::data
