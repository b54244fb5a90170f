#include "trainer/stage_transfers.h"

#include <algorithm>

#include <ATen/ops/empty.h>

namespace hyperion::trainer {

StageTransfers::StageTransfers(parallel::Communicator& ranks, at::Device device)
    : ranks_(ranks), device_(device), stream_(DeviceStream::from_pool(device, /*high_priority=*/true)) {}

StageTransfers::Receiving StageTransfers::receive(at::IntArrayRef shape, const at::TensorOptions& options,
                                                  int peer) {
  const StreamScope scope(stream_);
  const auto fits = [&](const Buffer& buffer) { return buffer.tensor.sizes() == shape; };
  Buffer buffer;
  if (const auto found = std::ranges::find_if(free_, fits); found != free_.end()) {
    buffer = std::move(*found);
    free_.erase(found);
    stream_.wait(buffer.last_use);
  } else {
    buffer.tensor =
        at::empty(shape, options);  // kept for good: a step allocates as many as it has in use at once
  }
  Pending pending = ranks_.start_recv(buffer.tensor, peer);
  return {std::move(buffer.tensor), std::move(pending)};
}

void StageTransfers::recycle(at::Tensor tensor) {
  Buffer& buffer = free_.emplace_back(Buffer{std::move(tensor), {}});
  buffer.last_use.record(DeviceStream::current(device_));
}

void StageTransfers::send(const at::Tensor& tensor, int peer) {
  sent_.emplace_back(ranks_.start_send(tensor, peer), tensor);
  if (!ranks_.moves_by_itself()) return finish();
  while (sent_.size() > kSends) {
    sent_.front().first.wait();
    sent_.pop_front();
  }
}

void StageTransfers::finish() {
  for (auto& [pending, tensor] : sent_) pending.wait();
  sent_.clear();
}

}  // namespace hyperion::trainer
