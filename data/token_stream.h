// The global token stream: documents in the order of (seed, epoch), concatenated, epoch after epoch. Every
// rank reads the same stream, so it is the same on any mesh, and a position in it is a few numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/corpus_reader.h"
#include "data/node_documents.h"
#include "data/packing.h"
#include "data/skipped_documents.h"

namespace hyperion::data {

// Not thread-safe.
// All functions throw Error(kBadData) naming file:line for invalid data.
class TokenStream {
 public:
  explicit TokenStream(CorpusReader reader) : reader_(std::move(reader)), options_(reader_.options()) {}

  // The position of the next token, which exists unless the stream has ended.
  StreamPosition position();
  // Moves to `position`; `seed` replaces that of the options. Ends share().
  void seek(const StreamPosition& position, uint64_t seed);
  // Until the next seek(), documents come from the ranks of this node, which tokenize about `tokens_ahead`
  // tokens ahead. Requires a stream that repeats.
  void share(NodeDocuments& node, uint64_t tokens_ahead);

  // Fills `out` with the next tokens and advances past all but the last, with which the next sequence
  // begins. Appends a DocumentSpan, counted from out[0], for each document touched. Returns the number of
  // tokens, which is smaller than out.size() only at the stream's end.
  size_t read_window(std::span<int64_t> out, std::vector<DocumentSpan>& spans);
  size_t skip(size_t count);
  // The document at position(), which must have been called last; at the end of the data none.
  DocumentPlace place() const;

  // Since the last seek(), counted in the order of the stream: the same on every rank and mesh.
  const SkippedDocuments& skipped() const { return skipped_; }
  const StreamOptions& options() const { return options_; }
  const std::vector<CorpusFile>& files() const { return reader_.files(); }

 private:
  // Opens the document after the current one, after a seek the current one. Returns false at the stream's
  // end.
  bool open_next();
  // Skips exhausted documents, so that position_ is at a token. Returns false if the stream has ended.
  bool advance_to_token();
  void copy_tokens(uint64_t offset, std::span<int64_t> out) const;
  template <typename Take>
  size_t consume(size_t count, const Take& take);

  CorpusReader reader_;  // owned by node_'s thread while `node_` is set
  StreamOptions options_;
  StreamPosition position_;
  NodeDocuments* node_ = nullptr;
  std::optional<DocumentInfo> document_;  // the document opened last
  std::vector<int32_t> tokens_;           // its tokens, if it comes from node_
  SkippedDocuments skipped_;
  bool served_again_ = false;  // the next document from node_ has been counted in skipped_
  bool open_ = false;          // document_ is the one at position_
  bool finished_ = true;       // the document at position_ has been read, or there is none
};

}  // namespace hyperion::data
