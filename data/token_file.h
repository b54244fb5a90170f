// Documents of tokens in a binary file, read in place by pread: no array in memory grows with the file. The
// formats differ in where the ends of documents are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "data/document_source.h"

namespace hyperion::data {

// Little-endian integers.
enum class TokenType : uint8_t { kU8, kI8, kU16, kI16, kU32, kI32, kI64 };
size_t width_of(TokenType type);
const char* name_of(TokenType type);

// Tokens of one type in a file.
struct TokenArray {
  InputFile file;
  TokenType type = TokenType::kU16;
  uint64_t begin = 0;  // first byte
  uint64_t count = 0;

  // Copies tokens [first, first + out.size()) in stretches of 128 KiB and returns the largest one, where a
  // negative token counts as larger than all others. Behind them `ahead` tokens are read for the next call.
  // Throws Error(kBadData) naming the file.
  uint64_t copy(uint64_t first, std::span<int64_t> out, uint64_t ahead = 0) const;
  // Reads tokens [first, last), keeps them for copy() in place of those kept before, and returns the indices,
  // counted from `first`, of those that equal `token`.
  std::vector<uint32_t> keep_and_find(int64_t token, uint64_t first, uint64_t last);

 private:
  struct Piece {
    void reserve(uint64_t size);

    std::unique_ptr<std::byte[]> bytes;
    uint64_t capacity = 0;
    uint64_t begin = 0, end = 0;  // its tokens
  };
  void read(uint64_t first, uint64_t count, Piece& piece) const;

  mutable Piece stretch_;  // the last one that was read
  Piece kept_;
};

// TokenFacts are the facts of tokens that a job knows and their files do not name.
struct TokenFacts {
  uint64_t vocab_size = 0;            // the model's; every token must be below it (0: not compared)
  uint64_t tokenizer_vocab_size = 0;  // 0: not known
  std::optional<int32_t> eos{};       // of the tokenizer
};

// Some tokens of a file.
struct TokenSample {
  uint64_t tokens = 0;
  uint64_t largest = 0;
  uint64_t documents = 0;
  uint64_t with_eos = 0;  // documents whose last token is EOS
};

// Returns whether the file begins with these bytes.
bool begins_with(const InputFile& file, std::string_view bytes);
// Throws Error(kBadData) naming the file if it is a substitute, such as a Git LFS pointer
// (base/substitute.h).
void refuse_substitute(const InputFile& file);

// Base of the formats. A derived class fills `tokens_` and `documents_` and says where a document is.
class TokenFileSource : public DocumentSource {
 public:
  std::optional<uint64_t> open_block(uint64_t block) override {
    return block == 0 ? std::optional(documents_) : std::nullopt;
  }
  uint64_t location(uint64_t document) const override { return document + 1; }
  uint64_t open(uint64_t document) final;
  void copy(uint64_t offset, std::span<int64_t> out) const final;

  // The tokens of up to three stretches, and up to 64 documents of the first block. Throws Error(kBadData)
  // for a token outside of the vocabulary.
  TokenSample sample(std::optional<int32_t> eos);
  const TokenArray& tokens() const { return tokens_; }

 protected:
  struct Range {
    uint64_t begin = 0, end = 0;  // indices in tokens_
  };
  // `name` ("token shard PATH") begins every message. `vocabulary` ("its vocabulary") and `remedy` are for
  // the message about a token that is not below `vocab_size` (0: not compared).
  TokenFileSource(std::string name, uint64_t vocab_size, std::string vocabulary, std::string remedy)
      : name_(std::move(name)),
        vocab_size_(vocab_size),
        vocabulary_(std::move(vocabulary)),
        remedy_(std::move(remedy)) {}
  TokenFileSource(const std::string& file, const TokenFacts& facts)
      : TokenFileSource(file, facts.vocab_size, "the model's vocabulary",
                        "use the tokenizer, and a model with the vocabulary, that the file was made for") {}

  virtual Range range(uint64_t document) const = 0;
  // A document's tokens by a file of uint64, in which each document has its end. Throws Error(kBadData)
  // unless begin <= end <= tokens_.count.
  Range range_by(const InputFile& ends, uint64_t document) const;
  // A document of the current block, for messages.
  virtual std::string describe(uint64_t document) const;

  std::string name_;
  uint64_t vocab_size_;
  TokenArray tokens_;
  uint64_t documents_ = 0;  // in the current block

 private:
  bool in_vocabulary(uint64_t token) const;
  [[noreturn]] void refuse_token(uint64_t token, const std::string& where) const;

  std::string vocabulary_, remedy_;
  uint64_t document_ = 0;  // the open document
  Range range_;            // its tokens
};

}  // namespace hyperion::data
