#include "parallel/comm/mailbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

namespace hyperion::parallel {

MailItem::MailItem(const at::Tensor& tensor, bool of_all_to_all)
    : tensor(tensor),
      label{tensor.nbytes(), static_cast<int32_t>(tensor.scalar_type()), of_all_to_all ? 1 : 0} {}

bool MailSender::advance() {
  uint32_t written = memory_.written.load(std::memory_order_relaxed);
  const uint32_t before = written;
  while (!queue_.empty() && written - memory_.read.load(std::memory_order_acquire) < MailboxMemory::kPieces) {
    MailItem& item = *queue_.front();
    const uint64_t length = std::min<uint64_t>(item.label.bytes - item.moved, MailboxMemory::kPieceBytes);
    const uint32_t slot = written % MailboxMemory::kPieces;
    memory_.labels[slot] = item.label;
    if (length > 0) {
      std::memcpy(memory_.pieces[slot].data(),
                  static_cast<const std::byte*>(item.tensor.const_data_ptr()) + item.moved, length);
    }
    memory_.written.store(++written, std::memory_order_release);
    item.moved += length;
    item.done = item.moved == item.label.bytes;
    if (item.done) queue_.pop_front();
  }
  return written != before;
}

void MailReceiver::add(std::shared_ptr<MailItem> item) {
  item->failure = failure_;
  queue_.push_back(std::move(item));
}

bool MailReceiver::advance() {
  uint32_t read = memory_.read.load(std::memory_order_relaxed);
  const uint32_t before = read;
  while (!idle() && read != memory_.written.load(std::memory_order_acquire)) {
    MailItem& item = *queue_.front();
    const uint32_t slot = read % MailboxMemory::kPieces;
    failure_ = label_mismatch(memory_.labels[slot], item.label);
    if (!failure_.empty()) {
      for (const auto& waiting : queue_) waiting->failure = failure_;
      return true;
    }
    const uint64_t length = std::min<uint64_t>(item.label.bytes - item.moved, MailboxMemory::kPieceBytes);
    if (length > 0) {
      std::memcpy(static_cast<std::byte*>(item.tensor.data_ptr()) + item.moved, memory_.pieces[slot].data(),
                  length);
    }
    memory_.read.store(++read, std::memory_order_release);
    item.moved += length;
    item.done = item.moved == item.label.bytes;
    if (item.done) queue_.pop_front();
  }
  return read != before;
}

std::string label_mismatch(const MailboxMemory::Label& sent, const MailboxMemory::Label& expected) {
  if (sent.bytes == expected.bytes && sent.dtype == expected.dtype &&
      sent.of_all_to_all == expected.of_all_to_all)
    return "";
  const auto text = [](const MailboxMemory::Label& label) {
    return fmt::format("{} bytes of {} {}", label.bytes,
                       c10::toString(static_cast<at::ScalarType>(label.dtype)),
                       label.of_all_to_all != 0 ? "in an all-to-all" : "in a send");
  };
  return fmt::format("its next message is {}, and this rank expects {}", text(sent), text(expected));
}

}  // namespace hyperion::parallel
