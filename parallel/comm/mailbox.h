// A mailbox moves transfers from one rank to another through memory that both map: a ring of pieces, in the
// order in which the transfers were started. Nothing here waits; the communicator decides when to advance
// it.
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

// The shared memory of one ordered pair of ranks. Fresh pages (zeros) are an empty mailbox.
struct MailboxMemory {
  static constexpr uint32_t kPieces = 8;  // maximum
  static constexpr size_t kPieceBytes = size_t{256} << 10;

  // Describes the transfer that a piece belongs to. The sender's and the receiver's must be equal.
  struct Label {
    uint64_t bytes;  // size of the tensor
    int32_t dtype;   // at::ScalarType
    int32_t is_all_to_all;
  };

  alignas(64) std::atomic<uint32_t> written;  // number of pieces written (wraps around)
  alignas(64) std::atomic<uint32_t> read;
  alignas(64) std::array<Label, kPieces> labels;
  alignas(64) std::array<std::array<std::byte, kPieceBytes>, kPieces> pieces;
};

// A transfer that one side has started.
struct MailboxTransfer {
  MailboxTransfer(const at::Tensor& tensor, bool is_all_to_all);
  at::Tensor tensor;  // kept alive
  MailboxMemory::Label label;
  uint64_t moved = 0;  // bytes already written or read
  bool done = false;
  std::string failure{};  // why it cannot complete
};

// One side of a mailbox: the writing rank or the reading rank.
class Mailbox {
 public:
  // `pieces` is the ring's size, the same on both sides.
  Mailbox(MailboxMemory& memory, bool sends, uint32_t pieces)
      : memory_(memory), sends_(sends), pieces_(pieces) {}
  void add(std::shared_ptr<MailboxTransfer> item);
  bool idle() const { return queue_.empty() || !failure_.empty(); }
  // Writes pieces while the ring has space, or reads available pieces into the started transfers. Returns
  // whether anything was moved or a mismatch was detected, after which this transfer and all later ones
  // fail.
  bool advance();

 private:
  MailboxMemory& memory_;
  const bool sends_;
  const uint32_t pieces_;
  std::deque<std::shared_ptr<MailboxTransfer>> queue_;  // incomplete transfers, oldest first
  std::string failure_;
};

// Why a transfer cannot be received; empty if the labels are equal.
std::string label_mismatch(const MailboxMemory::Label& sent, const MailboxMemory::Label& expected);

}  // namespace hyperion::parallel
