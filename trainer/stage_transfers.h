// Activations and gradients on their way between the pipeline stages of two ranks.
//
// On a GPU a transfer runs on a stream of NCCL's: a send after the compute stream's work so far, a receive
// after nothing but the last use of the memory that it writes, so that it never waits for a computation. All
// ranks start their transfers in one order (parallel/pipeline/schedule.h), so that none waits for ever.
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/device/streams.h"
#include "parallel/comm/communicator.h"

namespace hyperion::trainer {

class StageTransfers {
 public:
  // `ranks`: one of each stage, in the order of parallel::MeshDim::kPp; outlives it.
  StageTransfers(parallel::Communicator& ranks, at::Device device);

  int rank() const { return ranks_.rank(); }

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
  // Sends that are kept: later ones have started, so the memory of earlier ones is freed without a wait that
  // lasts.
  static constexpr size_t kSends = 2;

  parallel::Communicator& ranks_;
  at::Device device_;
  DeviceStream stream_;  // of receives; nothing is computed on it
  std::vector<Buffer> free_;
  std::deque<std::pair<Pending, at::Tensor>> sent_;
};

}  // namespace hyperion::trainer
