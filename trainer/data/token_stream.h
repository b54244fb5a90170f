// The one global token stream: documents in the order of (seed, epoch), back to back, epoch after epoch.
// Every rank reads the same stream, so it is the same on any mesh, and a position in it is a few numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer/data/document_order.h"
#include "trainer/data/packing.h"
#include "trainer/data/sources.h"

namespace hyperion::trainer {

// The next token to come. `file` and `document` count in the epoch's order, not the corpus's, so the position
// is meaningful with the same seed and data only.
struct StreamPosition {
  uint64_t epoch = 0;
  uint64_t file = 0;
  uint64_t document = 0;
  uint64_t token = 0;
  bool operator==(const StreamPosition&) const = default;
};

struct StreamOptions {
  uint64_t seed = 0;
  bool shuffle = true;  // files, then the documents inside each file, in a new order every epoch
  bool repeat = true;   // continue with the next epoch; else the stream ends after the first
};

// One file is open at a time. Not for use by two threads at once.
// All of it throws Error(kBadData) naming file:line for data that cannot be used.
class TokenStream {
 public:
  TokenStream(std::vector<CorpusFile> files, Encode encode, const StreamOptions& options,
              TextField field = {});

  // Always at an existing token, unless the stream ended.
  StreamPosition position();
  // `seed` replaces the one of the options.
  void seek(const StreamPosition& position, uint64_t seed);
  // At least `count` tokens are left. May open the documents that hold them.
  bool has_tokens(size_t count);

  // Fills `out` with the next tokens and steps over all but the last, which the next sequence begins with.
  // Appends a DocumentSpan, counted from out[0], for each document touched. Returns how many there were:
  // fewer only at the stream's end.
  size_t read_window(std::span<int64_t> out, std::vector<DocumentSpan>& spans);
  size_t skip(size_t count);
  // "file:line" of the document with the next token.
  std::string describe_position();

  const StreamOptions& options() const { return options_; }
  const std::vector<CorpusFile>& files() const { return files_; }

 private:
  // Opens the file and the document of position_ when they are not open.
  void open_document();
  // Skips exhausted documents, so that position_ is at a token (or the stream has ended: false).
  bool advance_to_token();
  template <typename Take>
  size_t consume(size_t count, const Take& take);

  std::vector<CorpusFile> files_;
  Encode encode_;
  StreamOptions options_;
  TextField field_;
  StreamPosition position_;
  std::unique_ptr<DocumentSource> source_;
  std::optional<size_t> file_;        // index in files_ of source_
  std::optional<uint64_t> document_;  // index in source_ of the open document
  uint64_t length_ = 0;               // of the open document
  bool open_ = false;                 // the open document is position_'s
};

}  // namespace hyperion::trainer
