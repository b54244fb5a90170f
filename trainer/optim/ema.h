// Ema keeps the exponential moving average of the weights: ema = decay * ema + (1 - decay) * weight, in the
// masters' dtype (fp32 or fp64) and with their sharding. It takes 4 bytes per parameter (fp32), divided by
// the shard degree. Each update rounds once or twice, by 1 ulp in all; in the worst case the errors add up to
// 1 / (2 (1 - decay)) ulps.
#pragma once

#include <cstdint>
#include <future>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/device/streams.h"
#include "parallel/fsdp/sharded_parameter.h"
#include "trainer/config/job_config.h"

namespace hyperion::optim {

// Not thread-safe. With ema.device = "cpu" on a GPU, update() only queues copies of the masters into pinned
// memory on the current stream. A worker thread waits for them and computes while training continues, and the
// next update() or any access waits for the worker. Otherwise nothing here waits for the device.
class Ema {
 public:
  // The average starts from the present weights: load or initialise them first, or call restart() afterwards.
  Ema(std::vector<parallel::ShardedParameterPtr> parameters, const config::JobConfig::Ema& options);
  ~Ema();
  Ema(const Ema&) = delete;
  Ema& operator=(const Ema&) = delete;

  // Updates the average if `step` is a multiple of `every`. Call it after optimizer step `step` (from 1). If
  // `skip` (as in Optimizer::step) is 1, the average does not change; the device decides that.
  void update(int64_t step, const at::Tensor& skip);
  // Sets the average to the present weights.
  void restart();

  // Returns the averages in the constructor's order, each [local rows, ...]. The tensors never change; after
  // this call a checkpoint reads and fills them in place. Throws Error(kBug) between swap_in() and
  // swap_out().
  const std::vector<at::Tensor>& tensors();
  // Waits until no update is in flight on the host.
  void wait_for_update();

  // Between swap_in() and swap_out() the model computes with the average. If the compute dtype differs from
  // the masters', the compute-dtype copies are overwritten and later restored from the masters. Otherwise
  // weights and average are exchanged through a buffer of at most 16 MiB. Afterwards both are bit for bit
  // unchanged.
  void swap_in();
  void swap_out();

 private:
  struct Pair {  // of one parameter with local rows
    at::Tensor average, weight;
    at::Tensor staged;  // pinned copy of `weight` (average on the host, weight on a GPU)
  };
  void update_in_place(const at::Tensor& skip);
  void start_update_on_host(const at::Tensor& skip);
  void swap();

  std::vector<parallel::ShardedParameterPtr> parameters_;
  config::JobConfig::Ema options_;
  std::vector<at::Tensor> averages_;  // one per parameter
  std::vector<Pair> filled_;
  at::Tensor staged_skip_;
  DeviceEvent copied_;
  std::future<void> worker_;
  bool swapped_ = false;
};

}  // namespace hyperion::optim
