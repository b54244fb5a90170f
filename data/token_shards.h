// Token shards: a corpus tokenised once, read in place. A shard is a folder of three files:
//
//   tokens.bin     every token of every document in order (BOS and EOS included), little endian, no header;
//                  uint16 when the vocabulary has at most 65,536 entries, else uint32
//   documents.bin  one little-endian uint64 per document: the index in tokens.bin where it ends (exclusive);
//                  document i is tokens [end[i-1], end[i]); non-decreasing, the last one is the token count
//   index.json     {"format": "hyperion-token-shard", "version": 1,
//                   "dtype": "uint16" or "uint32",
//                   "tokens": token count, "documents": document count (at least 1 each),
//                   "vocab_size": every token is below it,
//                   "tokenizer": 16 hex digits, XXH3-64 of tokenizer.json; "" when unknown (then not
//                   compared), "tokenizer_path": where that file was, for messages only; may be left out,
//                   "tokens_xxh3", "documents_xxh3": 16 hex digits, XXH3-64 of the two files; may be left
//                   out}
//
// In numpy: tokens.astype("<u2").tofile("tokens.bin"); numpy.array(ends, "<u8").tofile("documents.bin").
//
// The loader permutes documents, never the tokens inside one, and adds no BOS or EOS to a shard. So a shard
// with ONE document is read in its written order whatever the seed and training.shuffle say, again and again:
// the form for a recorded stream. documents.bin's checksum is verified on opening, tokens.bin's by verify()
// (it reads all of it).
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"
#include "data/token_file.h"

namespace hyperion::data {

// Returns whether `folder` is a folder whose index.json declares a token shard.
bool is_token_shard(const std::filesystem::path& folder);

inline constexpr uint64_t kNarrowVocabulary = 65536;  // at most as many entries: uint16

// XXH3-64 of a file, as 16 hex digits.
std::string hash_hex(const InputFile& file);
// XXH3-64 (16 hex digits) of the tokenizer file at `path`, or of tokenizer.json (else tokenizer.model) in it.
std::string tokenizer_fingerprint(const std::filesystem::path& path);

struct ShardHeader {
  bool wide = false;  // uint32 instead of uint16
  uint64_t tokens = 0;
  uint64_t documents = 0;
  uint64_t vocab_size = 0;
  std::string tokenizer;       // fingerprint, "" when unknown
  std::string tokenizer_path;  // for messages
  std::string tokens_xxh3;     // "" when not recorded
  std::string documents_xxh3;
};

// Throws Error(kBadData) naming the file and the field. `path` is for messages.
ShardHeader parse_shard_header(const std::string& text, const std::filesystem::path& path);
std::string shard_header_json(const ShardHeader& header);

// A shard as a source of documents. Opening checks header, sizes and the document index.
class ShardSource : public TokenFileSource {
 public:
  explicit ShardSource(const std::filesystem::path& folder);

  const ShardHeader& header() const { return header_; }
  // Compares tokens.bin with its checksum. Throws Error(kBadData).
  void verify() const;

 private:
  ShardSource(const std::filesystem::path& folder, ShardHeader header);
  Range range(uint64_t document) const override { return range_by(ends_, document); }
  void check_documents() const;

  std::filesystem::path folder_;
  ShardHeader header_;
  InputFile ends_;
};

// ShardOutput says what a TokenShardWriter writes, and whether a later one may continue it.
struct ShardOutput {
  bool megatron = false;  // FOLDER.bin and FOLDER.idx (megatron.h) instead of a shard
  // A hash of what is written: a later writer with the same hash continues after the last record().
  // "": nothing is kept.
  std::string job;
};

// Writes a shard under a temporary name next to `folder`; finish() checksums it and renames it into place.
// Without finish() nothing is left behind but what was recorded: in FOLDER.partial. `folder` must be missing
// or empty, else Error(kUsage), which also refuses FOLDER.partial of another job or of a running process.
class TokenShardWriter {
 public:
  TokenShardWriter(const std::filesystem::path& folder, uint64_t vocab_size, std::string tokenizer,
                   std::string tokenizer_path, ShardOutput output = {});
  TokenShardWriter(const TokenShardWriter&) = delete;
  TokenShardWriter& operator=(const TokenShardWriter&) = delete;
  ~TokenShardWriter();

  // Appends one document. Every token must be in [0, vocab_size).
  void add(std::span<const int64_t> tokens) {
    append(tokens);
    end_document();
  }
  // Appends a document in pieces.
  void append(std::span<const int64_t> tokens);
  void end_document();
  // Records that everything up to here comes from the first `inputs` inputs; durable.
  void record(uint64_t inputs);
  // The recorded inputs, whose documents need not be added again.
  uint64_t recorded() const { return recorded_; }
  const ShardHeader& header() const { return header_; }
  // Returns the written header.
  ShardHeader finish();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  using File = std::unique_ptr<std::FILE, Close>;
  std::filesystem::path megatron_file(const char* suffix) const;
  void require_free_place() const;
  void continue_or_begin();
  File open(const char* name) const;
  void flush(File& file);
  void write(File& file, const void* data, size_t size);

  std::filesystem::path folder_;
  std::filesystem::path temporary_;
  ShardOutput output_;
  ShardHeader header_;
  File tokens_;
  File ends_;
  uint64_t recorded_ = 0;
};

}  // namespace hyperion::data
