// A StreamedExchange runs collectives on its own stream, so that layers overlap them with matrix products.
// Inputs must be written by the stream that is current at start; wait() makes the stream that is current
// then wait for the result. The host waits for nothing. It is for GPUs; a CPU has no streams and uses the
// group directly.
//
// A GPU runs the operations of several NCCL communicators at the same time (fsdp's gathers and reductions,
// tp), and each occupies the device until the other ranks have joined. There is no deadlock as long as all
// ranks launch them in one order: the host of each rank runs the same program over the same units, so the
// order of its calls is the same on all ranks. Whether or when an operation starts must not depend on the
// rank's own values or on time.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include <c10/core/Device.h>

#include "base/device/streams.h"
#include "base/exchange.h"

namespace hyperion::parallel {

class StreamedExchange : public Exchange {
 public:
  // `group` must outlive this object.
  StreamedExchange(Exchange& group, c10::Device device)
      : group_(group), device_(device), stream_(DeviceStream::from_pool(device, /*high_priority=*/true)) {}

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }

  // The tensors are kept alive until wait(): later work of the stream that waits may reuse their memory.
  Pending start_all_gather_into(const at::Tensor& out, const at::Tensor& in) override;
  Pending start_reduce_scatter_sum(const at::Tensor& out, const at::Tensor& in) override;
  Pending start_all_reduce_sum(const at::Tensor& tensor) override;
  Pending start_all_reduce_max(const at::Tensor& tensor) override;
  // The group already runs these on its own stream.
  Pending start_block_exchange(const at::Tensor& out, const at::Tensor& in,
                               std::span<const RowBlock> out_blocks,
                               std::span<const RowBlock> in_blocks) override {
    return group_.start_block_exchange(out, in, out_blocks, in_blocks);
  }
  Pending start_transfers(std::vector<Transfer> transfers) override {
    return group_.start_transfers(std::move(transfers));
  }

 private:
  Pending start_on_stream(std::vector<at::Tensor> tensors, const std::function<Pending()>& start);

  Exchange& group_;
  c10::Device device_;
  DeviceStream stream_;
};

}  // namespace hyperion::parallel
