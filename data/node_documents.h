// Text tokenised once per node: document k of the order, counted from where the ranks started to read, is
// tokenised by rank k mod L of the L ranks of a node, and read by all of them from its shared memory. Every
// rank gets the documents that it would tokenise itself, in the same order.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "base/collective.h"
#include "base/shared_segment.h"
#include "data/corpus_reader.h"

namespace hyperion::data {

struct TokenisedDocument {
  DocumentInfo info;
  std::vector<int32_t> tokens;
};

// start(), next() and stop() are for one thread at a time; interrupt() is for any.
class NodeDocuments {
 public:
  // Collective over all ranks of the job. Null on every rank when every rank is alone on its host, or when
  // one cannot map the memory of another.
  static std::unique_ptr<NodeDocuments> make(Coordinator& ranks);
  ~NodeDocuments();
  NodeDocuments(const NodeDocuments&) = delete;
  NodeDocuments& operator=(const NodeDocuments&) = delete;

  int ranks_of_node() const { return static_cast<int>(rings_.size()); }

  // The documents from `position` on, epoch after epoch: a thread tokenises this rank's share, as far ahead
  // as its ring has room. `reader` is that thread's until stop(). All ranks start equally often, at the same
  // position, with the same seed, and not before the others have what they need of the documents of the start
  // before, which are dropped.
  void start(CorpusReader& reader, const StreamPosition& position, uint64_t seed, uint64_t tokens_ahead);
  // The next document, which is that of `position`. Throws what tokenising it threw on its rank,
  // Error(kCommunication) when that rank has ended or after interrupt().
  TokenisedDocument next(const StreamPosition& position);
  // next() throws from now on, in whatever thread it waits, until the next start().
  void interrupt();
  // Ends the thread. What it has written stays for the other ranks.
  void stop();

 private:
  struct Ring;
  NodeDocuments(std::vector<SharedSegment> segments, std::vector<int> ranks, int own);
  void tokenise(CorpusReader& reader, StreamPosition position, uint64_t seed);
  void publish(const StreamPosition& position, uint64_t kind, const DocumentInfo& info, const void* data,
               uint64_t bytes);
  void write(const void* data, uint64_t bytes);
  void read(int owner, void* data, uint64_t bytes);

  std::vector<SharedSegment> segments_;  // by rank of the node
  std::vector<Ring*> rings_;
  std::vector<int> ranks_;  // their ranks in the job, for messages
  int own_;
  std::atomic<bool> interrupted_ = false;
  uint64_t generation_ = 0;           // starts so far
  uint64_t max_words_ = 0;            // in the own ring
  uint64_t next_document_ = 0;        // since the start
  std::vector<uint64_t> words_read_;  // of each ring since the start
  std::vector<int64_t> widened_;      // of the thread
  std::jthread thread_;
};

}  // namespace hyperion::data
