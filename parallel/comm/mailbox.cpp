#include "parallel/comm/mailbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include <c10/core/ScalarType.h>

namespace hyperion::parallel {

MailboxTransfer::MailboxTransfer(const at::Tensor& tensor, bool is_all_to_all)
    : tensor(tensor),
      label{tensor.nbytes(), static_cast<int32_t>(tensor.scalar_type()), is_all_to_all ? 1 : 0} {}

void Mailbox::add(std::shared_ptr<MailboxTransfer> item) {
  item->failure = failure_;
  queue_.push_back(std::move(item));
}

bool Mailbox::advance() {
  std::atomic<uint32_t>& moved = sends_ ? memory_.written : memory_.read;
  const uint32_t before = moved.load(std::memory_order_relaxed);
  const auto ready = [&](uint32_t piece) {
    return sends_ ? piece - memory_.read.load(std::memory_order_acquire) < pieces_
                  : piece != memory_.written.load(std::memory_order_acquire);
  };
  uint32_t piece = before;
  while (!idle() && ready(piece)) {
    MailboxTransfer& item = *queue_.front();
    const uint32_t slot = piece % pieces_;
    if (sends_) {
      memory_.labels[slot] = item.label;
    } else if (failure_ = label_mismatch(memory_.labels[slot], item.label); !failure_.empty()) {
      for (const auto& waiting : queue_) waiting->failure = failure_;
      return true;
    }
    const uint64_t length = std::min<uint64_t>(item.label.bytes - item.moved, MailboxMemory::kPieceBytes);
    if (length > 0) {
      std::byte* const in_memory = memory_.pieces[slot].data();
      std::byte* const in_tensor = static_cast<std::byte*>(item.tensor.data_ptr()) + item.moved;
      std::memcpy(sends_ ? in_memory : in_tensor, sends_ ? in_tensor : in_memory, length);
    }
    moved.store(++piece, std::memory_order_release);
    item.moved += length;
    item.done = item.moved == item.label.bytes;
    if (item.done) queue_.pop_front();
  }
  return piece != before;
}

std::string label_mismatch(const MailboxMemory::Label& sent, const MailboxMemory::Label& expected) {
  if (sent.bytes == expected.bytes && sent.dtype == expected.dtype &&
      sent.is_all_to_all == expected.is_all_to_all)
    return "";
  const auto text = [](const MailboxMemory::Label& label) {
    return fmt::format("{} bytes of {} {}", label.bytes,
                       c10::toString(static_cast<at::ScalarType>(label.dtype)),
                       label.is_all_to_all != 0 ? "in an all-to-all" : "in a send");
  };
  return fmt::format("its next message is {}, and this rank expects {}", text(sent), text(expected));
}

}  // namespace hyperion::parallel
