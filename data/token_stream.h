// The one global token stream: documents in the order of (seed, epoch), back to back, epoch after epoch.
// Every rank reads the same stream, so it is the same on any mesh, and a position in it is a few numbers.
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

namespace hyperion::data {

struct StreamOptions {
  uint64_t seed = 0;
  bool shuffle = true;  // files, then the documents inside each file, in a new order every epoch
  bool repeat = true;   // continue with the next epoch; else the stream ends after the first
};

// Not for use by two threads at once.
// All of it throws Error(kBadData) naming file:line for data that cannot be used.
class TokenStream {
 public:
  // `reader`: with the same shuffle.
  TokenStream(CorpusReader reader, const StreamOptions& options)
      : reader_(std::move(reader)), options_(options) {}

  // Always at an existing token, unless the stream ended.
  StreamPosition position();
  // `seed` replaces the one of the options. The documents are this stream's own again.
  void seek(const StreamPosition& position, uint64_t seed);
  // From here on, until seek(), the documents come from the ranks of this node, which tokenise about
  // so far ahead. For streams that repeat.
  void share(NodeDocuments& node, uint64_t tokens_ahead);

  // Fills `out` with the next tokens and steps over all but the last, which the next sequence begins with.
  // Appends a DocumentSpan, counted from out[0], for each document touched. Returns how many there were:
  // fewer only at the stream's end.
  size_t read_window(std::span<int64_t> out, std::vector<DocumentSpan>& spans);
  size_t skip(size_t count);
  // "file:line" of the document with the token of position(), which was called last.
  std::string describe_position() const;

  const StreamOptions& options() const { return options_; }
  const std::vector<CorpusFile>& files() const { return reader_.files(); }

 private:
  // Opens the file and the document of position_ when they are not open.
  void open_document();
  // Skips exhausted documents, so that position_ is at a token (or the stream has ended: false).
  bool advance_to_token();
  void copy_tokens(uint64_t offset, std::span<int64_t> out) const;
  template <typename Take>
  size_t consume(size_t count, const Take& take);

  CorpusReader reader_;  // while `node_` is set, the thread's of that
  StreamOptions options_;
  StreamPosition position_;
  NodeDocuments* node_ = nullptr;
  std::optional<DocumentInfo> document_;  // that was opened last
  std::vector<int32_t> tokens_;           // its tokens, where it comes from the node
  bool open_ = false;                     // it is position_'s
};

}  // namespace hyperion::data
