// NodeDocuments tokenizes text once per node: the documents of slot s are tokenized by rank s mod L of the L
// ranks of a node, so that each rank decodes the blocks of its slots only; in an order of few slots document
// k, counted from the ranks' start position, by rank k mod L. All ranks read it from that rank's shared
// memory, and get the documents that they would tokenize themselves, in the same order.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/collective.h"
#include "base/shared_segment.h"
#include "data/corpus_reader.h"

namespace hyperion::data {

struct TokenisedDocument {
  DrawnDocument drawn;
  DocumentInfo info;
  std::vector<int32_t> tokens;
  std::string bad{};  // see CorpusReader::bad()
};

// start(), next() and stop() are for one thread at a time; interrupt() is thread-safe.
class NodeDocuments {
 public:
  // Collective over all ranks of the job. Returns null on every rank if every rank is alone on its host, or
  // if any rank cannot map the memory of another.
  static std::unique_ptr<NodeDocuments> make(Coordinator& group);
  ~NodeDocuments();
  NodeDocuments(const NodeDocuments&) = delete;
  NodeDocuments& operator=(const NodeDocuments&) = delete;

  int ranks_of_node() const { return static_cast<int>(rings_.size()); }

  // Starts serving documents from that of `position` on (one must have been drawn), epoch after epoch: a
  // thread tokenizes this rank's share, as far ahead as its ring has space, and owns `reader` until stop().
  // All ranks must start equally often, at the same position, with the same seed, and only after all have
  // read what they need of the previous start's documents, which are dropped.
  void start(CorpusReader& reader, const StreamPosition& position, uint64_t seed, uint64_t tokens_ahead);
  // Returns the next document, the first after start() being that of its position. Rethrows the error of
  // tokenizing it on its rank; throws Error(kCommunication) if that rank has ended or after interrupt().
  TokenisedDocument next();
  // Makes next() throw, also if it is waiting, until the next start().
  void interrupt();
  // Ends the thread. Its written documents stay available to the other ranks.
  void stop();

 private:
  struct Ring;
  NodeDocuments(std::vector<SharedSegment> segments, std::vector<int> ranks, int local_rank);
  struct Head;
  // The rank of the node that tokenizes document `number` from the start, which is of `slot`.
  int owner_of(uint64_t number, uint64_t slot) const;
  void tokenise(CorpusReader& reader, const StreamPosition& position, uint64_t seed);
  void publish(const Head& head, std::span<const int32_t> tokens, std::string_view message);
  void write(const void* data, uint64_t bytes);
  void read(int owner, void* data, uint64_t bytes);

  std::vector<SharedSegment> segments_;  // by rank of the node
  std::vector<Ring*> rings_;
  std::vector<int> ranks_;  // their ranks in the job, for messages
  int local_rank_;
  std::atomic<bool> interrupted_ = false;
  uint64_t generation_ = 0;           // number of starts
  uint64_t max_words_ = 0;            // capacity of this rank's ring
  uint64_t slots_ = 0;                // of the order
  int next_owner_ = 0;                // the rank that tokenizes the next document
  std::vector<uint64_t> words_read_;  // words read from each ring since the start
  std::vector<int64_t> widened_;      // used by the thread
  std::jthread thread_;
};

}  // namespace hyperion::data
