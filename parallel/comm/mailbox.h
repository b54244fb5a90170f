// Transfers from one rank to another through memory that both map: a ring of pieces, in the order in which
// the transfers were started. Nothing here waits; the communicator decides when to go on.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

namespace hyperion::parallel {

// What lies in the shared memory, of one ordered pair of ranks. Fresh pages (zeros) are an empty mailbox.
struct MailboxMemory {
  static constexpr uint32_t kPieces = 8;  // at most
  static constexpr size_t kPieceBytes = size_t{256} << 10;

  // Of the transfer that a piece belongs to. Both ranks must mean the same by it.
  struct Label {
    uint64_t bytes;  // of the tensor
    int32_t dtype;   // at::ScalarType
    int32_t of_all_to_all;
  };

  alignas(64) std::atomic<uint32_t> written;  // pieces so far (wraps around)
  alignas(64) std::atomic<uint32_t> read;
  alignas(64) std::array<Label, kPieces> labels;
  alignas(64) std::array<std::array<std::byte, kPieceBytes>, kPieces> pieces;
};

// A transfer that one side has started.
struct MailItem {
  MailItem(const at::Tensor& tensor, bool of_all_to_all);
  at::Tensor tensor;  // kept alive
  MailboxMemory::Label label;
  uint64_t moved = 0;  // bytes written or read so far
  bool done = false;
  std::string failure{};  // why it can never be done
};

// One side of a mailbox: the rank that writes into it, or the one that reads.
class Mailbox {
 public:
  // `pieces`: of the ring, the same on both sides.
  Mailbox(MailboxMemory& memory, bool sends, uint32_t pieces)
      : memory_(memory), sends_(sends), pieces_(pieces) {}
  void add(std::shared_ptr<MailItem> item);
  bool idle() const { return queue_.empty() || !failure_.empty(); }
  // Writes what the ring has space for, or reads what is there for the transfers that were started. Whether
  // anything was moved, or found not to fit: then this transfer and all later ones fail.
  bool advance();

 private:
  MailboxMemory& memory_;
  const bool sends_;
  const uint32_t pieces_;
  std::deque<std::shared_ptr<MailItem>> queue_;  // not done, oldest first
  std::string failure_;
};

// Why a transfer cannot be received; empty when both labels mean the same.
std::string label_mismatch(const MailboxMemory::Label& sent, const MailboxMemory::Label& expected);

}  // namespace hyperion::parallel
