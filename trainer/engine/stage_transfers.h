// StageTransfers sends and receives activations and gradients between the pipeline stages of two ranks.
//
// On a GPU a transfer runs on an NCCL stream. A send waits for the compute stream's work so far; a receive
// waits only for the last use of the memory that it writes. Transfers to higher and to lower ranks use
// separate process groups, and so separate streams: a late transfer delays its own direction only
// (benchmarks/pipeline_schedule.cpp measures the gain). All ranks start their transfers in one global order
// (parallel/pipeline/schedule.h), which prevents deadlock.
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/device/streams.h"
#include "parallel/comm/communicator.h"

namespace hyperion::trainer {

// The process groups of the pipeline's ranks for transfers to higher ranks (`up`) and to lower ranks
// (`down`). Without NCCL both are one group.
struct StageGroups {
  parallel::Communicator& up;
  parallel::Communicator& down;
};

class StageTransfers {
 public:
  // The groups outlive it.
  StageTransfers(const StageGroups& groups, at::Device device);

  struct Receiving {
    at::Tensor tensor;
    Pending pending;  // after its wait() the current stream may read the tensor
  };
  Receiving receive(at::IntArrayRef shape, const at::TensorOptions& options, int peer);
  // Takes back the memory of a received tensor. Only work already queued on the current stream may still read
  // it.
  void recycle(at::Tensor tensor);
  // Through shared memory the send is complete when this returns. With more than parallel::kMaxSends in
  // flight in a direction the compute stream (over sockets: the host) waits for the oldest.
  void send(const at::Tensor& tensor, int peer);
  // Makes the current stream wait for all sends, so that it may overwrite the sent tensors.
  void finish();

 private:
  struct Buffer {
    at::Tensor tensor;
    DeviceEvent last_use;
  };
  struct Direction {
    parallel::Communicator& ranks;
    std::deque<std::pair<Pending, at::Tensor>> sent;
  };

  Direction up_, down_;
  at::Device device_;
  DeviceStream stream_;  // for receives; nothing is computed on it
  std::vector<Buffer> free_;
};

}  // namespace hyperion::trainer
