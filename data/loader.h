// The DataLoader cuts the microbatches of one data-parallel rank from the global token stream and
// prefetches them on a thread.
//
// Every mesh sees the same data by this rule: microbatch k of the job is the next D * L sequences of the
// stream (D data-parallel ranks, L rows each), and rank d gets those from d * L. With A microbatches per
// step and a global batch of G = A * D * L, batch n is sequences [n * G, (n + 1) * G), and microbatch a,
// rank d, row l holds number a * D * L + d * L + l of it. Every rank reads the entire stream and keeps its
// own rows: text is tokenized by every rank, shards (token_shards.h) are skipped over.
//
// Several sources have a token stream each. Sequence n is the next one of the stream that SourceMix draws for
// n, so it is the same one on every mesh.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "data/packing.h"
#include "data/source_mix.h"
#include "data/source_state.h"
#include "data/token_stream.h"

namespace hyperion::data {

struct LoaderOptions {
  std::vector<SourceOptions> sources{};  // one without a name, or a list with names, whose order repeats
  bool stops_at_source_end = true;       // else the other sources continue by their weights
  Encode encode;                         // not needed if there are no files of text
  std::string tokenizer_fingerprint;     // see token_shards.h; compared with the shards'
  std::string tokenizer_path;            // for messages
  TokenFacts tokens;
  int64_t seq_len = 0;    // S
  int64_t rows = 0;       // L, the local batch size
  int64_t dp_degree = 1;  // D
  int64_t dp_rank = 0;
  StreamOptions order;         // training repeats; validation is in the files' order, once
  bool document_mask = false;  // see packing.h
  int prefetch = 4;            // number of microbatches kept ready
};

// The position in the data, as stored in a checkpoint. It counts consumed data, not prefetched data, and
// holds no rank or mesh, so it is valid at any data-parallel degree, batch size and sequence length.
struct LoaderState {
  std::vector<SourceState> sources = std::vector<SourceState>(1);  // in the order of LoaderOptions::sources
  uint64_t sequence = 0;                                           // number of sequences consumed
  uint64_t seed = 0;                                               // seed of the document order
  bool shuffle = true;
  std::optional<uint64_t> window{};  // StreamOptions::window; none: version 1, one file after another
  uint64_t fingerprint = 0;          // fingerprint of the data and its tokenizer

  bool operator==(const LoaderState&) const = default;

  // The sources with names; none if the only one has no name.
  std::span<const SourceState> named_sources() const;

  // {"version": 2, "position": .., "sequence": .., "seed": .., "shuffle": .., "window": ..,
  //  "fingerprint": ".."} of a source without a name; else version 3, and "sources": [..] in place of the
  // position
  std::string to_json() const;
  // Reads version 1 too, whose position is of one file after another. Throws Error(kBadData) naming the
  // field.
  static LoaderState from_json(std::string_view text);
};

// All calls are for one thread. The loader's own thread starts with the first next().
class DataLoader {
 public:
  // Lists the files and compares shard headers. Throws Error(kBadData).
  explicit DataLoader(LoaderOptions options);
  ~DataLoader();
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  // Returns the next microbatch. A one-pass loader returns nullopt at its end, at the same call on every
  // rank: the last microbatch is filled with padding (label -100), on some ranks entirely. Rethrows the
  // thread's exception.
  std::optional<Batch> next();

  // The state after the microbatches that next() has returned.
  const LoaderState& state() const { return state_; }
  // Continues after `saved`, with its seed. Throws Error(kBadData) if the data, the tokenizer or
  // training.shuffle differ from those of `saved`. With several sources, or a state of several, those that
  // both have continue (continued_sources()), others begin, and new shares count from here on; the
  // differences are logged.
  void load_state(const LoaderState& saved);
  // Returns to the first sequence.
  void reset();
  // Returns to the first sequence of another seed's order.
  void reset(uint64_t seed);

  // "file:line..file:line" of a sequence of one of the last microbatches; for another rank's sequence, the
  // range of its microbatch. For the message about a non-finite loss.
  std::string where(uint64_t sequence) const;

  uint64_t fingerprint() const { return initial_.fingerprint; }
  // The first state: its sources with their names and fingerprints.
  const LoaderState& initial_state() const { return initial_; }
  // The files of each source.
  std::vector<std::vector<CorpusFile>> files() const;
  // Seconds that next() has waited for data since construction.
  double wait_seconds() const { return wait_seconds_; }
  // The number of ranks that tokenize the stream together: 1, or the ranks of this node.
  int tokenising_ranks() const;

 private:
  struct PreparedBatch {
    uint64_t first = 0;  // first sequence over all ranks
    std::optional<Batch> batch{};
    LoaderState after{};
    std::vector<PlaceRange> range{};  // over all ranks' rows, of each source
  };
  // Used by the thread while it runs.
  struct Source {
    SourceOptions options;
    TokenStream stream;
    uint64_t tokens = 0;  // consumed
    bool ended = false;   // max_epochs are read
  };
  void prefetch(const std::stop_token& stop);
  PreparedBatch prepare_batch();
  size_t draw_source();
  // Ends a source that has been read max_epochs times.
  void end_source_if_read(Source& source);
  SourceMix make_mix() const;
  // The state of `sources_`.
  LoaderState prepared_state();
  LoaderState adapted_state(const LoaderState& state) const;
  // Throws Error(kBadData) unless the order of `state` is that of this loader.
  void require_same_order(const LoaderState& state) const;
  void stop_thread();
  void restart_from(const LoaderState& state);

  LoaderOptions options_;  // without sources
  std::vector<Source> sources_;
  SourceMix mix_;                    // used by the thread while it runs
  uint64_t prepared_ = 0;            // number of sequences prepared; used by the thread while it runs
  std::vector<int64_t> window_;      // a row and the token behind it; used by the thread
  std::vector<DocumentSpan> spans_;  // its documents
  LoaderState initial_;
  LoaderState state_;
  std::deque<PreparedBatch> recent_;  // returned by next(), without tokens
  double wait_seconds_ = 0;

  std::mutex mutex_;  // guards ready_ and error_
  std::condition_variable_any changed_;
  std::deque<PreparedBatch> ready_;
  std::exception_ptr error_;
  std::jthread thread_;  // declared last: ends before the members it uses
};

}  // namespace hyperion::data
