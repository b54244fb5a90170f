// The data loader: microbatches of one data-parallel rank, cut from the global token stream, prepared by a
// thread.
//
// The rule that makes every mesh see the same data: microbatch k of the job is the next D * L sequences of
// the stream (D data-parallel ranks, L rows each), and rank d gets those from d * L. With A microbatches per
// step and a global batch of G = A * D * L, batch n is sequences [n * G, (n + 1) * G), and microbatch a, rank
// d, row l holds number a * D * L + d * L + l of it. Every rank reads the whole stream and keeps its own
// rows: text is tokenised by every rank, shards (token_shards.h) are skipped over.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "data/packing.h"
#include "data/token_stream.h"

namespace hyperion::data {

struct LoaderOptions {
  std::string dataset_path;                           // see find_corpus
  std::string dataset_key = "training.dataset_path";  // the option that set it, for messages
  TextField text_field;                               // of JSON lines
  Encode encode;                                      // not needed when the path holds token shards only
  std::string tokenizer_fingerprint;                  // see token_shards.h; compared with the shards'
  std::string tokenizer_path;                         // for messages
  int64_t vocab_size = 0;  // of the model; a shard's must not be larger (0: not compared)
  int64_t seq_len = 0;     // S
  int64_t rows = 0;        // L, the local batch size
  int64_t dp_degree = 1;   // D
  int64_t dp_rank = 0;
  StreamOptions order;         // training repeats; validation is {.shuffle = false, .repeat = false}
  bool document_mask = false;  // see packing.h
  int prefetch = 4;            // microbatches kept ready
  // The ranks of this node tokenise together. Used where all files are text and the order repeats.
  std::shared_ptr<NodeDocuments> node{};
};

// The position in the data, as a checkpoint holds it. It counts what was consumed, not what was prefetched,
// and holds no rank or mesh, so it is valid at any data-parallel degree, batch size and sequence length.
struct LoaderState {
  StreamPosition position;  // of the next token
  uint64_t sequence = 0;    // sequences consumed so far
  uint64_t seed = 0;        // of the order of documents
  bool shuffle = true;
  uint64_t fingerprint = 0;  // of the data and its tokenizer

  bool operator==(const LoaderState&) const = default;

  // {"version": 1, "epoch": .., "file": .., "document": .., "token_offset": .., "sequence": .., "seed": ..,
  //  "shuffle": .., "fingerprint": ".."}
  std::string to_json() const;
  // Throws Error(kBadData) naming the field.
  static LoaderState from_json(std::string_view text);
};

// next(), state() and the like are for one thread; the loader's own thread starts with the first next().
class DataLoader {
 public:
  // Lists the files and compares shard headers. Throws Error(kBadData).
  explicit DataLoader(LoaderOptions options);
  ~DataLoader();
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  // The next microbatch; nothing at the end of a one-pass loader, at the same call on every rank: the last
  // microbatch is filled with padding (label -100), perhaps all of it on this rank. Throws what the thread
  // threw.
  std::optional<Batch> next();

  // What was consumed by next() so far.
  const LoaderState& state() const { return state_; }
  // Continues after `state`, with the seed it was saved with. Throws Error(kBadData) when the data, the
  // tokenizer or training.shuffle differ from those it was saved with.
  void load_state(const LoaderState& state);
  // Back to the first sequence.
  void reset();
  // Back to the first sequence of the order of another seed.
  void reset(uint64_t seed);

  // "file:line..file:line" of a sequence of one of the last microbatches; for a sequence of another rank, the
  // range of the microbatch that held it. For the message about a non-finite loss.
  std::string where(uint64_t sequence) const;

  uint64_t fingerprint() const { return initial_.fingerprint; }
  // Seconds that next() waited for data since the loader was made.
  double wait_seconds() const { return wait_seconds_; }
  // That tokenise the stream together: 1, or the ranks of this node.
  int tokenising_ranks() const { return options_.node ? options_.node->ranks_of_node() : 1; }

 private:
  struct PreparedBatch {
    uint64_t first = 0;  // of all ranks' sequences
    std::optional<Batch> batch{};
    LoaderState after{};
    std::string range{};  // of all ranks' rows
  };
  void prefetch(const std::stop_token& stop);
  PreparedBatch prepare_batch();
  void stop_thread();
  void restart_from(const LoaderState& state);

  LoaderOptions options_;
  TokenStream stream_;  // the thread's while it runs
  uint64_t made_ = 0;   // sequences; the thread's, too
  LoaderState initial_;
  LoaderState state_;
  std::deque<PreparedBatch> recent_;  // returned by next(), without tokens
  double wait_seconds_ = 0;

  std::mutex mutex_;  // guards ready_ and error_
  std::condition_variable_any changed_;
  std::deque<PreparedBatch> ready_;
  std::exception_ptr error_;
  std::jthread thread_;  // last: ends before what it uses
};

}  // namespace hyperion::data
