// Activations and gradients on their way between the pipeline stages of two ranks.
//
// On a GPU a transfer runs on a stream of NCCL's: a send after the compute stream's work so far, a receive
// after nothing but the last use of the memory that it writes, whose computation is long done. Transfers to
// higher and to lower ranks have a group each, and so a stream each, in which a transfer waits for those
// before it: one that is late holds up its own direction alone (benchmarks/pipeline_schedule.cpp says what
// that gains). All ranks start their transfers in one order (parallel/pipeline/schedule.h), so that none
// waits for ever.
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/device/streams.h"
#include "parallel/comm/communicator.h"

namespace hyperion::trainer {

// The ranks that the stages are divided over, as the groups of transfers to higher and to lower ones; over
// other backends than NCCL these are one group.
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
    Pending pending;  // after its wait() what the current stream runs next may read the tensor
  };
  Receiving receive(at::IntArrayRef shape, const at::TensorOptions& options, int peer);
  // Of a tensor that has been received: nothing but what the current stream has been given reads it.
  void recycle(at::Tensor tensor);
  // Through shared memory it has been sent when this returns.
  void send(const at::Tensor& tensor, int peer);
  // All that has been sent may be written by what the current stream runs next.
  void finish();

 private:
  struct Buffer {
    at::Tensor tensor;
    DeviceEvent last_use;
  };
  // Sends in a direction whose memory is kept. On GPUs the compute stream waits for an earlier one when a
  // later one starts; over sockets the host does, until the other rank has got to its receive.
  static constexpr size_t kSends = 2;
  struct Direction {
    parallel::Communicator& ranks;
    std::deque<std::pair<Pending, at::Tensor>> sent;
  };

  Direction up_, down_;
  at::Device device_;
  DeviceStream stream_;  // of receives; nothing is computed on it
  std::vector<Buffer> free_;
};

}  // namespace hyperion::trainer
