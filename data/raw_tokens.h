// Token files without a list of their documents, and datatrove's pair. All are read in place, little endian:
//
//   X.npy   of OLMo-core and dolma: uint16 or uint32 tokens without a header; or numpy's own format with a
//           1-D array of uint16, uint32 or int32. A document ends with the tokenizer's EOS.
//   X.bin   of llm.c and modded-nanogpt: 256 int32 (magic, version, count), then the tokens. 20240520,
//           version 1: uint16, a document begins with 50256 (GPT-2). 20240801, version 7: uint32, a document
//           begins with 128000 (Llama 3).
//   X.ds    of datatrove: uint16 or uint32 tokens; X.ds.index holds the documents' ends as uint64.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "data/token_file.h"

namespace hyperion::data {

// Returns whether the file begins as llm.c's, or as numpy's own .npy.
bool begins_as_llm_c(const InputFile& file);
bool begins_as_numpy(const InputFile& file);

// Documents that are found by a token that begins or ends each. They are read in blocks of about a million
// tokens, and a document belongs to the block where it begins. Its location is its first token, counted
// from 1.
class DelimitedSource : public TokenFileSource {
 public:
  static constexpr uint64_t kBlockTokens = uint64_t{1} << 20;

  std::optional<uint64_t> blocks() const override {
    const uint64_t part = equal_part(tokens_.count, block_tokens_);
    return (tokens_.count + part - 1) / part;
  }
  std::optional<uint64_t> open_block(uint64_t block) override;
  uint64_t location(uint64_t document) const override { return begin_of(document) + 1; }

 protected:
  DelimitedSource(const std::string& file, const TokenFacts& facts, uint64_t block_tokens)
      : TokenFileSource(file, facts), block_tokens_(block_tokens) {}
  int64_t delimiter_ = 0;
  bool begins_ = false;  // the delimiter is a document's first token, else its last one

 private:
  Range range(uint64_t document) const override;
  std::string describe(uint64_t document) const override;
  uint64_t begin_of(uint64_t document) const { return block_begin_ + begins_in_block_[document]; }

  uint64_t block_tokens_;
  uint64_t block_begin_ = 0;               // first token of the current block
  std::vector<uint32_t> begins_in_block_;  // first tokens of its documents
  uint64_t end_ = 0;                       // of its last document
};

// The files' constructors throw Error(kBadData) naming the file.
class NumpySource : public DelimitedSource {
 public:
  // Without a header, tokens are uint16 if the tokenizer has at most 65,536 entries, unless every second
  // uint16 of a sample is 0: then they are uint32.
  NumpySource(InputFile file, const TokenFacts& facts, uint64_t block_tokens = kBlockTokens);
};

class LlmCSource : public DelimitedSource {
 public:
  LlmCSource(InputFile file, const TokenFacts& facts, uint64_t block_tokens = kBlockTokens);
};

// X.ds.index of X.ds.
std::filesystem::path datatrove_index(std::filesystem::path tokens);

class DatatroveSource : public TokenFileSource {
 public:
  DatatroveSource(const std::filesystem::path& tokens, const TokenFacts& facts)
      : DatatroveSource(InputFile(tokens), InputFile(datatrove_index(tokens)), facts) {}
  DatatroveSource(InputFile tokens, InputFile ends, const TokenFacts& facts);

 private:
  Range range(uint64_t document) const override { return range_by(ends_, document); }

  InputFile ends_;
};

}  // namespace hyperion::data
