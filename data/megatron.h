// Megatron-LM's indexed data (Megatron Core's IndexedDataset), read in place: X.bin holds tokens, and X.idx
//
//   byte 0   "MMIDIDX\0\0", u64 version 1, u8 dtype, u64 sequences S, u64 entries D
//   byte 34  S x i32 lengths in tokens, S x i64 first bytes in X.bin, D x i64 document boundaries
//
// little endian. Document i is sequences [boundary[i], boundary[i+1]), so there are D - 1 documents.
#pragma once

#include <filesystem>

#include "data/token_file.h"

namespace hyperion::data {

// X.idx of X.bin.
std::filesystem::path megatron_index(std::filesystem::path tokens);

// Opening reads header and sizes; a document's place is compared with the file when it is opened.
class MegatronSource : public TokenFileSource {
 public:
  MegatronSource(const std::filesystem::path& tokens, const TokenFacts& facts)
      : MegatronSource(InputFile(tokens), InputFile(megatron_index(tokens)), facts) {}
  // Throws Error(kBadData) naming the file.
  MegatronSource(InputFile tokens, InputFile index, const TokenFacts& facts);

 private:
  Range range(uint64_t document) const override;

  InputFile index_;
  uint64_t sequences_ = 0;
  uint64_t pointers_ = 0, boundaries_ = 0;  // first bytes in index_
};

// Writes X.idx for tokens of `documents` documents of one sequence each, whose ends are in a file of uint64
// (token_shards.h). `type` is kU16 or kI32.
void write_megatron_index(const InputFile& ends, TokenType type, const std::filesystem::path& index);

}  // namespace hyperion::data
