#include "parallel/comm/shared_memory_communicator.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <optional>
#include <stdexcept>
#include <utility>

#include <unistd.h>

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/device/streams.h"
#include "base/error.h"
#include "base/log.h"
#include "base/pack.h"
#include "base/shared_segment.h"
#include "parallel/comm/mailbox.h"

namespace hyperion::parallel {
namespace {

using Clock = std::chrono::steady_clock;
using Rows = std::vector<const std::byte*>;  // one pointer per rank, in rank order

// out = rows[0] op rows[1] op ..., in that order, 16-bit floats in single precision; out may be one of the
// rows.
template <typename T>
void reduce_rows(T* out, const Rows& rows, int64_t count, bool max) {
  using Wide = at::opmath_type<T>;
  constexpr int64_t kBlock = 512;  // a constant, so that the compiler vectorises the loops
  Wide sum[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t length = std::min(kBlock, count - begin);
    const auto each = [&](const auto& action) {
      if (length == kBlock) {
        for (int64_t i = 0; i < kBlock; ++i) action(i);
      } else {
        for (int64_t i = 0; i < length; ++i) action(i);
      }
    };
    const T* first = reinterpret_cast<const T*>(rows[0]) + begin;
    each([&](int64_t i) { sum[i] = static_cast<Wide>(first[i]); });
    for (size_t r = 1; r < rows.size(); ++r) {
      const T* row = reinterpret_cast<const T*>(rows[r]) + begin;
      if (max) {
        each([&](int64_t i) {  // NaN wins, as in at::max
          const Wide value = static_cast<Wide>(row[i]);
          sum[i] = sum[i] >= value || sum[i] != sum[i] ? sum[i] : value;
        });
      } else {
        each([&](int64_t i) { sum[i] += static_cast<Wide>(row[i]); });
      }
    }
    each([&](int64_t i) { out[begin + i] = static_cast<T>(sum[i]); });
  }
}

void reduce_rows(at::ScalarType dtype, std::byte* out, const Rows& rows, int64_t count, bool max) {
  AT_DISPATCH_ALL_TYPES_AND2(at::kBFloat16, at::kHalf, dtype, "reduce_rows", [&] {
    reduce_rows<scalar_t>(reinterpret_cast<scalar_t*>(out), rows, count, max);
  });
}

// An operation is sent as messages. Message m covers elements [m * step, min(count, (m + 1) * step)).
struct Operation {
  int64_t count = 0;   // elements of all messages; 0 = one empty message (a barrier)
  int64_t step = 1;    // elements per message
  size_t payload = 0;  // maximum bytes of a message
  uint32_t written = 0, read = 0;
  std::function<void(std::byte* to, int64_t begin, int64_t length)> write = [](auto...) {};
  std::function<void(const Rows& from, int64_t begin, int64_t length)> read_from = [](auto...) {};
  at::Tensor out, in;  // kept alive

  uint32_t messages() const { return static_cast<uint32_t>(std::max<int64_t>(1, (count + step - 1) / step)); }
  bool done() const { return read == messages(); }
  int64_t begin(uint32_t message) const { return message * step; }
  int64_t length(uint32_t message) const { return std::min(step, count - begin(message)); }
};

class SharedMemoryCommunicator : public Communicator {
 public:
  // `segments`: one per rank, this rank's own among them.
  SharedMemoryCommunicator(std::string name, int rank, std::vector<int> global_ranks,
                           std::vector<SharedSegment> segments, std::chrono::milliseconds timeout,
                           uint32_t mailbox_pieces)
      : Communicator(std::move(name), rank, std::move(global_ranks)),
        segments_(std::move(segments)),
        timeout_(timeout) {
    for (int peer = 0; peer < size(); ++peer) {
      outgoing_.emplace_back(mailbox_memory(segments_[this->rank()], peer), /*sends=*/true, mailbox_pieces);
      incoming_.emplace_back(mailbox_memory(segments_[peer], this->rank()), /*sends=*/false, mailbox_pieces);
    }
  }

  // Each segment holds, behind its ring, a mailbox for each rank that its owner sends to.
  static size_t mailbox_bytes(size_t ranks) { return ranks * sizeof(MailboxMemory); }

  std::string_view backend() const override { return "shm"; }
  bool makes_async_progress() const override { return false; }
  void set_timeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  void abort() override {  // peers see it like the end of this rank
    outgoing_.clear();
    incoming_.clear();
    segments_.clear();
  }

 protected:
  Finish do_all_gather(const std::vector<CollectivePart>& parts) override {
    return for_each_part(parts,
                         [this](const CollectivePart& part) { return gather_rows(part.out, part.in); });
  }

  Finish gather_rows(const at::Tensor& out, const at::Tensor& in) {
    auto operation = make_operation(out, in, in.numel(), 1);
    const size_t width = in.element_size();
    auto* to = static_cast<std::byte*>(out.data_ptr());
    const auto* from = static_cast<const std::byte*>(in.data_ptr());
    operation->read_from = [=, this, count = in.numel()](const Rows& rows, int64_t begin, int64_t length) {
      for (int r = 0; r < size(); ++r) {
        std::byte* slot = to + (r * count + begin) * width;
        const std::byte* source = r == rank() ? from + begin * width : rows[r];
        if (slot != source) std::memcpy(slot, source, length * width);
      }
    };
    return enqueue(std::move(operation));
  }

  // A message holds this rank's terms for every rank: [size, length]. The rank's own terms are read in
  // place.
  Finish do_reduce_scatter_sum(const std::vector<CollectivePart>& parts) override {
    return for_each_part(parts,
                         [this](const CollectivePart& part) { return reduce_scatter(part.out, part.in); });
  }

  Finish reduce_scatter(const at::Tensor& out, const at::Tensor& in) {
    auto operation = make_operation(out, in, out.numel(), size());
    const size_t width = in.element_size();
    const int64_t count = out.numel();
    auto* to = static_cast<std::byte*>(out.data_ptr());
    const auto* from = static_cast<const std::byte*>(in.data_ptr());
    operation->write = [=, this](std::byte* message, int64_t begin, int64_t length) {
      for (int r = 0; r < size(); ++r) {
        if (r != rank())
          std::memcpy(message + r * length * width, from + (r * count + begin) * width, length * width);
      }
    };
    operation->read_from = [=, this, dtype = in.scalar_type()](const Rows& rows, int64_t begin,
                                                               int64_t length) {
      Rows terms;
      for (int r = 0; r < size(); ++r) {
        terms.push_back(r == rank() ? from + (r * count + begin) * width : rows[r] + rank() * length * width);
      }
      reduce_rows(dtype, to + begin * width, terms, length, /*max=*/false);
    };
    return enqueue(std::move(operation));
  }

  // Every rank sums all terms: more reading than a ring, but one round, and the same bits on every rank.
  Finish do_all_reduce(const at::Tensor& tensor, bool max) override {
    auto operation = make_operation(tensor, tensor, tensor.numel(), 1);
    const size_t width = tensor.element_size();
    auto* data = static_cast<std::byte*>(tensor.data_ptr());
    operation->read_from = [=, dtype = tensor.scalar_type()](const Rows& rows, int64_t begin,
                                                             int64_t length) {
      reduce_rows(dtype, data + begin * width, rows, length, max);
    };
    return enqueue(std::move(operation));
  }

  Finish do_barrier() override { return enqueue(std::make_shared<Operation>()); }

  // Rank 0 reads every rank's message.
  Finish do_gather(const at::Tensor& out, const at::Tensor& in) override {
    if (rank() == 0) return gather_rows(out, in);
    return enqueue(make_operation(in, in, in.numel(), 1));
  }

  // All ranks read rank 0's message; the messages of the others are empty.
  Finish do_broadcast(const at::Tensor& tensor) override {
    auto operation = make_operation(tensor, tensor, tensor.numel(), 1);
    if (rank() != 0) {
      operation->payload = 0;
      operation->write = [](auto...) {};
      operation->read_from = [to = static_cast<std::byte*>(tensor.data_ptr())](
                                 const Rows& rows, int64_t begin, int64_t length) {
        std::memcpy(to + begin, rows[0], length);
      };
    }
    return enqueue(std::move(operation));
  }

  Finish do_transfers(const std::vector<Transfer>& transfers, bool is_all_to_all) override {
    require_segments();
    std::vector<std::shared_ptr<MailboxTransfer>> items;
    for (const auto& [kind, tensor, peer] : transfers) {
      items.push_back(std::make_shared<MailboxTransfer>(tensor, is_all_to_all));
      (kind == Transfer::Kind::kSend ? outgoing_ : incoming_)[peer].add(items.back());
    }
    advance();
    return [this, transfers, items = std::move(items)] {
      for (size_t i = 0; i < items.size(); ++i) {
        const MailboxTransfer& item = *items[i];
        const int peer = transfers[i].peer;
        const char* const lag =
            transfers[i].kind == Transfer::Kind::kSend ? "has not received it" : "has not sent it";
        advance_until([&] { return item.done || !item.failure.empty(); },
                      [&](int r) { return r == peer ? lag : nullptr; });
        if (!item.failure.empty())
          throw std::invalid_argument(fmt::format("from rank {}: {}", global_ranks()[peer], item.failure));
      }
    };
  }

 private:
  static MailboxMemory& mailbox_memory(const SharedSegment& segment, int index) {
    return reinterpret_cast<MailboxMemory*>(segment.extra())[index];
  }

  // An operation that writes `in` as its messages and reads nothing.
  static std::shared_ptr<Operation> make_operation(const at::Tensor& out, const at::Tensor& in, int64_t count,
                                                   int rows) {
    auto operation = std::make_shared<Operation>();
    const int64_t bytes = static_cast<int64_t>(in.element_size()) * rows;  // per element of a message
    operation->count = count;
    operation->step = std::max<int64_t>(1, std::min<int64_t>(count, SharedSegment::kMaxMessage / bytes));
    operation->payload = static_cast<size_t>(operation->step * bytes);
    operation->out = out;
    operation->in = in;
    operation->write = [from = static_cast<const std::byte*>(in.const_data_ptr()), width = in.element_size()](
                           std::byte* message, int64_t begin, int64_t length) {
      std::memcpy(message, from + begin * width, length * width);
    };
    return operation;
  }

  Finish enqueue(std::shared_ptr<Operation> operation) {
    require_segments();
    queue_.push_back(operation);
    while (write_next_message()) {
    }
    return [this, operation = std::move(operation)] {
      advance_until([&] { return operation->done(); }, [this](int r) { return lag_of(r); });
    };
  }

  void require_segments() const {
    if (segments_.empty()) throw std::runtime_error("this rank has given up the group");
  }

  // Writes the next message of the first operation that has one left, if the ring has space. Never waits.
  bool write_next_message() {
    const auto next =
        std::find_if(queue_.begin(), queue_.end(), [](const auto& o) { return o->written < o->messages(); });
    if (next == queue_.end()) return false;
    Operation& operation = **next;
    const auto offset = allocate_in_ring(operation.payload);
    if (!offset) return false;
    SharedSegment::Header& header = segments_[rank()].header();
    operation.write(segments_[rank()].payload(*offset), operation.begin(operation.written),
                    operation.length(operation.written));
    header.offsets[written_ % SharedSegment::kSlots] = *offset;
    ++operation.written;
    header.posted.store(++written_, std::memory_order_release);
    ring_bells();
    return true;
  }

  // The offset at which a message of `bytes` fits into this rank's ring, behind those that a peer has yet
  // to read.
  std::optional<uint64_t> allocate_in_ring(size_t bytes) {
    uint32_t oldest = written_;
    for (const auto& segment : segments_) {
      const uint32_t completed = segment.header().completed.load(std::memory_order_acquire);
      if (written_ - completed > written_ - oldest) oldest = completed;
    }
    if (written_ - oldest >= SharedSegment::kSlots) return std::nullopt;
    if (oldest == written_) end_ = 0;  // empty: start again, on memory that is in the cache
    const uint64_t start = end_, size = (std::max<size_t>(bytes, 1) + 63) / 64 * 64;
    const auto take = [&](uint64_t offset) {
      end_ = offset + size;
      return std::optional(offset);
    };
    if (oldest == written_) return take(0);
    const uint64_t tail = segments_[rank()].header().offsets[oldest % SharedSegment::kSlots];
    if (start > tail) {
      if (start + size <= SharedSegment::kCapacity) return take(start);
      return size < tail ? take(0) : std::nullopt;
    }
    return start + size < tail ? take(start) : std::nullopt;
  }

  // Reads the next message of every rank; all must have posted it.
  void read_posted_message() {
    Operation& operation = *queue_.front();
    Rows rows;
    for (int r = 0; r < size(); ++r) rows.push_back(segments_[r].message(read_));
    operation.read_from(rows, operation.begin(operation.read), operation.length(operation.read));
    ++operation.read;
    auto& completed = segments_[rank()].header().completed;
    completed.store(++read_, std::memory_order_release);
    ring_bells();
    if (operation.done()) queue_.pop_front();
  }

  // Why this rank's next collective message waits for rank r: r has not posted its message, or, if the ring
  // is full, has not read. Null if it does not wait.
  const char* lag_of(int r) const {
    const SharedSegment::Header& header = segments_[r].header();
    if (written_ == read_)
      return header.completed.load(std::memory_order_acquire) != written_ ? "has not finished the ones before"
                                                                          : nullptr;
    const auto posted = static_cast<int32_t>(header.posted.load(std::memory_order_acquire) - read_);
    return posted <= 0 ? "has not started it" : nullptr;
  }

  // Does everything that needs no waiting, in collectives and transfers. Returns whether anything was done.
  bool advance() {
    bool moved = false;
    while (write_next_message()) moved = true;
    while (written_ != read_) {
      bool posted = true;
      for (int r = 0; r < size() && posted; ++r) posted = lag_of(r) == nullptr;
      if (!posted) break;
      read_posted_message();
      moved = true;
      while (write_next_message()) {
      }
    }
    for (int peer = 0; peer < size(); ++peer) {
      const bool sent = outgoing_[peer].advance(), received = incoming_[peer].advance();
      if (sent || received) ring_bell(peer);
      moved = moved || sent || received;
    }
    return moved;
  }

  // Advances collectives and transfers until done(): a peer may need one kind to reach the other. Sleeps on
  // this rank's bell if nothing can be done. lag_of(r) says what rank r is waited for; null: not waited
  // for.
  template <typename Done, typename LagOf>
  void advance_until(const Done& done, const LagOf& lag_of) {
    auto deadline = Clock::now() + timeout_;
    while (true) {
      require_segments();
      bool moved = advance();
      if (done()) return;
      if (moved) {
        deadline = Clock::now() + timeout_;
        continue;
      }
      SharedSegment::Header& header = segments_[rank()].header();
      header.listening.store(1);
      std::atomic_thread_fence(std::memory_order_seq_cst);  // peers see `listening`, or we see their change
      const uint32_t seen = header.bell.load();
      moved = advance();
      if (!moved) wait_for_change(header.bell, seen);
      header.listening.store(0);
      if (moved || header.bell.load() != seen) continue;
      for (int r = 0; r < size(); ++r) {
        const char* const lag = r == rank() ? nullptr : lag_of(r);
        if (lag == nullptr) continue;
        if (segments_[r].owner_ended() && !advance() && !done())
          throw std::runtime_error(fmt::format("rank {} has left the group", global_ranks()[r]));
        if (Clock::now() > deadline && !done())
          throw std::runtime_error(fmt::format("timed out after {} s: rank {} {}",
                                               std::chrono::duration<double>(timeout_).count(),
                                               global_ranks()[r], lag));
      }
    }
  }

  // Call after a change that rank `peer` may wait for.
  void ring_bell(int peer) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    SharedSegment::Header& header = segments_[peer].header();
    if (header.listening.load() == 0) return;
    header.bell.fetch_add(1);
    wake_all(header.bell);
  }
  void ring_bells() {
    for (int peer = 0; peer < size(); ++peer)
      if (peer != rank()) ring_bell(peer);
  }

  std::vector<SharedSegment> segments_;
  std::vector<Mailbox> outgoing_, incoming_;  // by peer
  std::chrono::milliseconds timeout_;
  std::deque<std::shared_ptr<Operation>> queue_;  // incomplete operations, oldest first
  uint32_t written_ = 0, read_ = 0;  // number of messages; equal on all ranks once they are in step
  uint64_t end_ = 0;                 // end of the last message in this rank's ring
};

// Moves GPU tensors through pinned memory, for ranks that share a GPU. The host waits for the current stream
// before each operation, and for the other ranks in each collective, which is complete when it returns. A
// received tensor is copied to the GPU by the stream that is current in wait().
class StagedCommunicator final : public SharedMemoryCommunicator {
 public:
  using SharedMemoryCommunicator::SharedMemoryCommunicator;
  std::string_view backend() const override { return "staged"; }

 private:
  using Base = SharedMemoryCommunicator;
  static at::Tensor pinned_for(const at::Tensor& tensor) {
    return at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true));
  }
  static at::Tensor start_copy_to_host(const at::Tensor& tensor) {
    const at::Tensor host = pinned_for(tensor);
    host.copy_(tensor, /*non_blocking=*/true);
    return host;
  }

  Finish do_all_gather(const std::vector<CollectivePart>& parts) override {
    return in_host_memory(parts, [this](const auto& host) { return Base::do_all_gather(host); });
  }
  Finish do_reduce_scatter_sum(const std::vector<CollectivePart>& parts) override {
    return in_host_memory(parts, [this](const auto& host) { return Base::do_reduce_scatter_sum(host); });
  }
  template <typename Start>
  static Finish in_host_memory(const std::vector<CollectivePart>& parts, const Start& start) {
    if (parts[0].in.is_cpu()) return start(parts);
    std::vector<CollectivePart> on_host;
    for (const auto& [out, in] : parts) on_host.push_back({pinned_for(out), start_copy_to_host(in)});
    DeviceStream::current(parts[0].in.device()).synchronize();
    start(on_host)();
    for (size_t i = 0; i < parts.size(); ++i) parts[i].out.copy_(on_host[i].out, /*non_blocking=*/true);
    return nullptr;
  }
  Finish do_all_reduce(const at::Tensor& tensor, bool max) override {
    if (tensor.is_cpu()) return Base::do_all_reduce(tensor, max);
    const at::Tensor on_host = start_copy_to_host(tensor);
    DeviceStream::current(tensor.device()).synchronize();
    Base::do_all_reduce(on_host, max)();
    tensor.copy_(on_host, /*non_blocking=*/true);
    return nullptr;
  }
  Finish do_transfers(const std::vector<Transfer>& transfers, bool is_all_to_all) override {
    if (transfers[0].tensor.is_cpu()) return Base::do_transfers(transfers, is_all_to_all);
    std::vector<Transfer> on_host = transfers;
    for (auto& [kind, tensor, peer] : on_host)
      tensor = kind == Transfer::Kind::kSend ? start_copy_to_host(tensor) : pinned_for(tensor);
    DeviceStream::current(transfers[0].tensor.device()).synchronize();
    return [transfers, on_host, finish = Base::do_transfers(on_host, is_all_to_all)] {
      finish();
      for (size_t i = 0; i < transfers.size(); ++i) {
        if (transfers[i].kind == Transfer::Kind::kReceive)
          transfers[i].tensor.copy_(on_host[i].tensor, /*non_blocking=*/true);
      }
    };
  }
};

}  // namespace

std::unique_ptr<Communicator> make_shared_memory_communicator(std::string name, int rank,
                                                              std::vector<int> global_ranks,
                                                              c10d::Store& store,
                                                              std::chrono::milliseconds timeout,
                                                              uint32_t mailbox_pieces, bool staged) {
  const int size = static_cast<int>(global_ranks.size());
  const size_t mailboxes = SharedMemoryCommunicator::mailbox_bytes(global_ranks.size());
  std::optional<SharedSegment> local = SharedSegment::create(mailboxes);
  if (!local)
    log_warning("rank {}: no shared memory between the ranks of this host ({}){}", global_ranks[rank],
                std::strerror(errno), staged ? "" : ": they use Gloo");
  // Exchanges a value between all ranks in two requests to the store.
  const auto exchange = [&]<typename Value>(const char* what, const Value& local_value) {
    std::vector<std::string> keys;
    for (int r = 0; r < size; ++r) keys.push_back(fmt::format("shm/{}/{}", what, r));
    store.set(keys[rank], pack(local_value));
    std::vector<Value> values;
    for (const std::vector<uint8_t>& bytes : store.multiGet(keys))
      values.push_back(unpack<Value>({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
    return values;
  };
  using File = std::pair<int, int>;  // process and descriptor; none: 0
  const std::vector<File> files = exchange("at", local ? File(getpid(), local->fd()) : File());
  std::vector<SharedSegment> segments;
  bool good = local.has_value();
  for (int r = 0; r < size && good; ++r) {
    auto segment = r == rank             ? std::exchange(local, std::nullopt)
                   : files[r].first == 0 ? std::nullopt
                                         : SharedSegment::open(files[r].first, files[r].second, mailboxes);
    good = segment.has_value();
    if (good) segments.push_back(std::move(*segment));
  }
  if (std::ranges::count(exchange("good", good), false) > 0) return nullptr;
  if (staged)
    return std::make_unique<StagedCommunicator>(std::move(name), rank, std::move(global_ranks),
                                                std::move(segments), timeout, mailbox_pieces);
  return std::make_unique<SharedMemoryCommunicator>(std::move(name), rank, std::move(global_ranks),
                                                    std::move(segments), timeout, mailbox_pieces);
}

}  // namespace hyperion::parallel
