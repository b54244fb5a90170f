#include "data/node_documents.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <random>
#include <utility>

#include <unistd.h>

#include "base/error.h"
#include "base/gpu_fault.h"

namespace hyperion::data {
namespace {

// Timeout without data from a live rank. Reading and tokenizing a document takes far less; a collective,
// which every step has, notices a hanging rank earlier.
constexpr std::chrono::minutes kTimeout{10};
constexpr int kMaxRanks = 64;                                 // per node
constexpr uint64_t kWord = 8;                                 // bytes; writes and reads are multiples of it
constexpr uint64_t kMinWords = (uint64_t{64} << 10) / kWord;  // a few documents, even for a short prefetch

constexpr uint64_t words_of(uint64_t bytes) {
  return (bytes + kWord - 1) / kWord;
}

}  // namespace

// Precedes each document.
struct NodeDocuments::Head {
  DrawnDocument drawn{};
  DocumentInfo info{};
  uint64_t next_owner = 0;  // the rank that tokenizes the next document
  uint64_t message = 0;     // length of the message behind the tokens: about a bad document, or an error
  uint64_t is_error = 0;
};

// Layout of a segment's payload: the progress of its writer and of the node's readers, and the words
// themselves.
struct NodeDocuments::Ring {
  static constexpr uint64_t kHead = 8192;
  static constexpr uint64_t kWords = (SharedSegment::kCapacity - kHead) / kWord;

  struct Counter {
    uint64_t words : 40;
    uint64_t generation : 24;  // number of the start from which it counts
    bool operator==(const Counter&) const = default;
  };
  uint64_t identity;  // identifies the segment: in another pid namespace a pid may be another process
  alignas(64) std::atomic<Counter> written;
  alignas(64) std::atomic<uint32_t> writes;  // number of writes, to wait on
  alignas(64) std::atomic<uint32_t> reads;   // number of reads by all ranks, to wait on
  struct alignas(64) Reader {
    std::atomic<Counter> read;
  };
  Reader readers[kMaxRanks];

  std::byte* word(uint64_t index) {
    return reinterpret_cast<std::byte*>(this) + kHead + index % kWords * kWord;
  }
};

namespace {

// The address of a rank's segment for other ranks of its host.
struct SegmentAddress {
  std::string host;  // boot id; "": ranks of one host cannot find each other
  int process = 0, descriptor = -1;
  uint64_t identity = 0;
  static auto members(auto& self) {
    return std::tie(self.host, self.process, self.descriptor, self.identity);
  }
};

}  // namespace

std::unique_ptr<NodeDocuments> NodeDocuments::make(Coordinator& group) {
  static_assert(sizeof(Ring) <= Ring::kHead && std::atomic<Ring::Counter>::is_always_lock_free);
  std::optional<SharedSegment> segment = SharedSegment::create();
  SegmentAddress own_address;
  if (segment) {
    std::random_device device;
    auto* ring = reinterpret_cast<Ring*>(segment->payload(0));
    ring->identity = (uint64_t{device()} << 32) | device();
    own_address = {"", getpid(), segment->fd(), ring->identity};
    std::ifstream("/proc/sys/kernel/random/boot_id") >> own_address.host;
  }
  const auto addresses =
      combine_on_rank_0(group, own_address, [](std::vector<SegmentAddress> addresses) { return addresses; });
  bool good = std::ranges::count(addresses, "", &SegmentAddress::host) == 0;
  std::vector<SharedSegment> segments;
  std::vector<int> members;
  int local_rank = 0;
  for (int rank = 0; good && rank < group.size(); ++rank) {
    const SegmentAddress& address = addresses[static_cast<size_t>(rank)];
    if (address.host != own_address.host) continue;
    if (rank == group.rank()) {
      local_rank = static_cast<int>(members.size());
      segments.push_back(std::move(*segment));
    } else {
      auto peer = SharedSegment::open(address.process, address.descriptor);
      good = peer && reinterpret_cast<Ring*>(peer->payload(0))->identity == address.identity;
      if (good) segments.push_back(std::move(*peer));
    }
    members.push_back(rank);
  }
  good = good && members.size() <= kMaxRanks;
  enum class Answer : char { kImpossible, kAlone, kShared };  // kShared: with other ranks of its host
  const Answer answer = !good ? Answer::kImpossible : members.size() > 1 ? Answer::kShared : Answer::kAlone;
  const bool shared = combine_on_rank_0(group, answer, [](const std::vector<Answer>& answers) {
    return std::ranges::count(answers, Answer::kImpossible) == 0 &&
           std::ranges::count(answers, Answer::kShared) > 0;
  });
  if (!shared) return nullptr;
  return std::unique_ptr<NodeDocuments>(
      new NodeDocuments(std::move(segments), std::move(members), local_rank));
}

NodeDocuments::NodeDocuments(std::vector<SharedSegment> segments, std::vector<int> ranks, int local_rank)
    : segments_(std::move(segments)),
      ranks_(std::move(ranks)),
      local_rank_(local_rank),
      words_read_(ranks_.size()) {
  for (const SharedSegment& segment : segments_)
    rings_.push_back(reinterpret_cast<Ring*>(segment.payload(0)));
}

NodeDocuments::~NodeDocuments() {
  stop();
}

void NodeDocuments::start(CorpusReader& reader, const StreamPosition& position, uint64_t seed,
                          uint64_t tokens_ahead) {
  stop();
  interrupted_ = false;
  ++generation_;
  slots_ = reader.slots();
  next_owner_ = owner_of(0, position.slot);
  max_words_ = std::clamp(words_of(tokens_ahead * sizeof(int32_t) / rings_.size()), kMinWords, Ring::kWords);
  std::ranges::fill(words_read_, 0);
  rings_[local_rank_]->written.store({0, generation_}, std::memory_order_release);
  thread_ = std::jthread([this, &reader, position, seed] { tokenise(reader, position, seed); });
}

void NodeDocuments::interrupt() {
  interrupted_ = true;
  for (Ring* ring : rings_) wake_all(ring->writes);
  wake_all(rings_[local_rank_]->reads);
}

void NodeDocuments::stop() {
  interrupt();
  if (thread_.joinable()) thread_.join();
}

namespace {
struct Interrupted {};
}  // namespace

int NodeDocuments::owner_of(uint64_t number, uint64_t slot) const {
  constexpr uint64_t kMinSlots = 4;  // per rank: with fewer, some ranks would have much more text than others
  const uint64_t ranks = rings_.size();
  return static_cast<int>((slots_ >= kMinSlots * ranks ? slot : number) % ranks);
}

void NodeDocuments::tokenise(CorpusReader& reader, const StreamPosition& position, uint64_t seed) {
  const auto own = static_cast<uint64_t>(local_rank_);
  try {
    try {
      reader.seek(position, seed);
      for (uint64_t number = 0; !interrupted_; ++number) {
        const DrawnDocument drawn = reader.drawn();
        const bool owns = owner_of(number, drawn.slot) == local_rank_;
        DocumentInfo info;
        std::vector<int32_t> tokens;
        if (owns) {
          info = reader.open();
          widened_.resize(info.length);
          reader.copy(0, widened_);
          tokens.assign(widened_.begin(), widened_.end());
        }
        std::exception_ptr failure;  // of the next document: this one is good
        uint64_t next_owner = own;
        try {
          next_owner = static_cast<uint64_t>(owner_of(number + 1, reader.draw()->slot));
        } catch (const std::exception&) {
          failure = std::current_exception();
        }
        if (owns) publish({drawn, info, next_owner, reader.bad().size()}, tokens, reader.bad());
        if (failure) std::rethrow_exception(failure);
      }
    } catch (const std::exception& error) {
      // Replaces this rank's next document: no rank gets beyond it.
      const std::string text = encode_error(error_from(error));
      publish({{}, {}, own, text.size(), /*is_error=*/1}, {}, text);
    }
  } catch (const Interrupted&) {
  }
}

void NodeDocuments::publish(const Head& head, std::span<const int32_t> tokens, std::string_view message) {
  static_assert(sizeof(Head) % kWord == 0 && std::is_trivially_copyable_v<Head>);
  write(&head, sizeof head);
  write(tokens.data(), tokens.size_bytes());
  write(message.data(), message.size());
  Ring& ring = *rings_[local_rank_];
  ring.writes.fetch_add(1, std::memory_order_release);
  wake_all(ring.writes);
}

// Writes to this rank's ring, as the ranks of the node free space.
void NodeDocuments::write(const void* data, uint64_t bytes) {
  Ring& ring = *rings_[local_rank_];
  uint64_t at = ring.written.load(std::memory_order_relaxed).words;
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const uint32_t seen = ring.reads.load(std::memory_order_acquire);
    uint64_t oldest = at;  // the first word that some rank has yet to read
    for (size_t reader = 0; reader < rings_.size(); ++reader) {
      const Ring::Counter read = ring.readers[reader].read.load(std::memory_order_acquire);
      if (read.generation < generation_) oldest = 0;  // it has not started yet
      if (read.generation == generation_) oldest = std::min<uint64_t>(oldest, read.words);
    }
    const uint64_t room = max_words_ - (at - oldest);
    if (room == 0) {
      if (interrupted_) throw Interrupted();
      ring.writes.fetch_add(1, std::memory_order_release);  // readers of the first part of this document
      wake_all(ring.writes);
      wait_for_change(ring.reads, seen);
      continue;
    }
    const uint64_t words = std::min({words_of(bytes), room, Ring::kWords - at % Ring::kWords});
    const uint64_t part = std::min(bytes, words * kWord);
    std::memcpy(ring.word(at), from, part);
    from += part;
    bytes -= part;
    at += words;
    ring.written.store({at, generation_}, std::memory_order_release);
  }
}

// Reads from the ring of a rank of the node.
void NodeDocuments::read(int owner, void* data, uint64_t bytes) {
  Ring& ring = *rings_[owner];
  uint64_t& at = words_read_[owner];
  auto* to = static_cast<std::byte*>(data);
  auto deadline = std::chrono::steady_clock::now() + kTimeout;
  while (bytes > 0) {
    if (interrupted_) throw_comm("the data loader was stopped while it waited for a document");
    const uint32_t seen = ring.writes.load(std::memory_order_acquire);
    const Ring::Counter written = ring.written.load(std::memory_order_acquire);
    if (written.generation > generation_)
      throw_comm(
          "rank {} reads the data from another place on, and has not kept a document that this rank waits "
          "for",
          ranks_[owner]);
    const uint64_t ready = written.generation == generation_ ? written.words - at : 0;
    if (ready == 0) {
      wait_for_change(ring.writes, seen);
      if (std::chrono::steady_clock::now() > deadline)
        throw_comm(
            "rank {} has sent no document for {} minutes, which tokenises a share of the text for the ranks "
            "of its host",
            ranks_[owner], kTimeout.count());
      if (ring.writes.load(std::memory_order_acquire) != seen || owner == local_rank_ ||
          !segments_[owner].owner_ended() || ring.written.load(std::memory_order_acquire) != written)
        continue;
      throw_comm("rank {} has ended, which tokenises a share of the text for the ranks of its host",
                 ranks_[owner]);
    }
    const uint64_t words = std::min({words_of(bytes), ready, Ring::kWords - at % Ring::kWords});
    const uint64_t part = std::min(bytes, words * kWord);
    std::memcpy(to, ring.word(at), part);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (ring.written.load(std::memory_order_acquire).generation != generation_) continue;  // overwritten
    to += part;
    bytes -= part;
    at += words;
    deadline = std::chrono::steady_clock::now() + kTimeout;
    ring.readers[local_rank_].read.store({at, generation_}, std::memory_order_release);
    ring.reads.fetch_add(1, std::memory_order_release);
    wake_all(ring.reads);
  }
}

TokenisedDocument NodeDocuments::next() {
  Head head;
  read(next_owner_, &head, sizeof head);
  TokenisedDocument document{head.drawn, head.info, std::vector<int32_t>(head.info.length),
                             std::string(head.message, '\0')};
  read(next_owner_, document.tokens.data(), document.tokens.size() * sizeof(int32_t));
  read(next_owner_, document.bad.data(), document.bad.size());
  if (head.is_error != 0) throw_encoded_error(document.bad);
  next_owner_ = static_cast<int>(head.next_owner);
  return document;
}

}  // namespace hyperion::data
