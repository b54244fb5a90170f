// The exponential moving average of the weights: ema = decay * ema + (1 - decay) * weight, in the masters'
// dtype (fp32, or fp64), sharded as they are. 4 bytes per parameter over the shard degree. Each update rounds
// once or twice, by 1 ulp in all; in the worst case these add up to 1 / (2 (1 - decay)) ulps.
#pragma once

#include <cstdint>
#include <future>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/device/streams.h"
#include "parallel/fsdp/sharded_parameter.h"
#include "trainer/config/job_config.h"

namespace hyperion::optim {

// For one thread. With ema.device = "cpu" on a GPU, update() only queues copies of the masters into pinned
// memory on the current stream; a thread waits for them and does the arithmetic while training continues, and
// the next update() or any access waits for that thread. Otherwise nothing here waits for the device.
class Ema {
 public:
  // The average starts as the weights are now: load or initialise them first, or call restart() afterwards.
  Ema(std::vector<parallel::ShardedParameterPtr> parameters, const config::JobConfig::Ema& options);
  ~Ema();
  Ema(const Ema&) = delete;
  Ema& operator=(const Ema&) = delete;

  // After optimizer step `step` (from 1): updates when it is a multiple of `every`. `skip`: as of
  // Optimizer::step; where it is 1 the average does not change, decided on the device.
  void update(int64_t step, const at::Tensor& skip);
  // The average becomes the present weights.
  void restart();

  // The average of parameter i, in the order given: [local rows, ...]. The tensors stay the same for good; a
  // checkpoint reads and fills them in place, after this call. Throws Error(kBug) while they are swapped in.
  const std::vector<at::Tensor>& tensors();
  // Returns when no update is under way on the host.
  void wait_for_update();

  // Between swap_in() and swap_out() the model computes with the average. Where the compute dtype is not the
  // masters', its copies are overwritten and written again from the masters; else weights and average are
  // exchanged, through a buffer of at most 16 MiB. Afterwards both are bit for bit what they were.
  void swap_in();
  void swap_out();

 private:
  struct Pair {  // of one parameter that this rank holds rows of
    at::Tensor average, weight;
    at::Tensor staged;  // pinned copy of `weight` (average on the host, weight on a GPU)
  };
  void update_in_place(const at::Tensor& skip);
  void start_update_on_host(const at::Tensor& skip);
  void swap();

  std::vector<parallel::ShardedParameterPtr> parameters_;
  config::JobConfig::Ema options_;
  std::vector<at::Tensor> averages_;  // of every parameter
  std::vector<Pair> filled_;
  at::Tensor staged_skip_;
  DeviceEvent copied_;
  std::future<void> worker_;
  bool swapped_ = false;
};

}  // namespace hyperion::optim
