#include "trainer/engine/stage_transfers.h"

#include <algorithm>

#include <ATen/ops/empty.h>

#include "base/failpoint.h"
#include "parallel/pipeline/lowering.h"

namespace hyperion::trainer {

StageTransfers::StageTransfers(const StageGroups& groups, at::Device device)
    : up_{groups.up, {}},
      down_{groups.down, {}},
      device_(device),
      stream_(DeviceStream::from_pool(device, /*high_priority=*/true)) {}

StageTransfers::Receiving StageTransfers::receive(at::IntArrayRef shape, const at::TensorOptions& options,
                                                  int peer) {
  failpoint("step.receive");
  const StreamScope scope(stream_);
  const auto fits = [&](const Buffer& buffer) { return buffer.tensor.sizes() == shape; };
  Buffer buffer;
  if (const auto found = std::ranges::find_if(free_, fits); found != free_.end()) {
    buffer = std::move(*found);
    free_.erase(found);
    stream_.wait(buffer.last_use);
  } else {
    buffer.tensor =
        at::empty(shape, options);  // never freed: a step allocates only as many as are in use at once
  }
  Pending pending = (peer < up_.ranks.rank() ? up_ : down_).ranks.start_recv(buffer.tensor, peer);
  return {std::move(buffer.tensor), std::move(pending)};
}

void StageTransfers::recycle(at::Tensor tensor) {
  Buffer& buffer = free_.emplace_back(Buffer{std::move(tensor), {}});
  buffer.last_use.record(DeviceStream::current(device_));
}

void StageTransfers::send(const at::Tensor& tensor, int peer) {
  failpoint("step.send");
  auto& [ranks, sent] = peer > up_.ranks.rank() ? up_ : down_;
  sent.emplace_back(ranks.start_send(tensor, peer), tensor);
  const size_t kept = ranks.makes_async_progress() ? parallel::kMaxSends : 0;
  while (sent.size() > kept) {
    sent.front().first.wait();
    sent.pop_front();
  }
}

void StageTransfers::finish() {
  for (Direction* direction : {&up_, &down_}) {
    for (auto& [pending, tensor] : direction->sent) pending.wait();
    direction->sent.clear();
  }
}

}  // namespace hyperion::trainer
