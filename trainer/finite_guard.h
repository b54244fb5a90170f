// A non-finite loss or gradient norm never reaches the weights: the optimizer is told on the device to skip,
// and the job ends as soon as the host knows, naming the step and the data.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/device/streams.h"
#include "parallel/communicator.h"

namespace hyperion::trainer {

class FiniteGuard {
 public:
  // `group`: all ranks whose losses add up; they agree on the verdict.
  explicit FiniteGuard(parallel::Communicator& group) : group_(group) {}

  // After the gradient norm of `step` is known. `losses`: this rank's microbatch losses (0-dim);
  // `describe(i)`: where microbatch i's sequences come from. Returns the optimizer's skip flag: 0-dim float,
  // 1 when anything is not finite.
  at::Tensor check(int64_t step, const std::vector<at::Tensor>& losses, const at::Tensor& norm,
                   std::function<std::string(size_t)> describe);

  // Throws Error(kNonFinite) when the step last checked (on a GPU: the one before) was not finite. `wait`:
  // also on a GPU the last one; before a save and at the end of training.
  void raise(bool wait);

 private:
  struct Verdict {
    int64_t step = 0;
    at::Tensor values;  // on the host: [skip, norm, losses...]
    DeviceEvent copied;
    std::function<std::string(size_t)> describe;
  };
  void raise(Verdict& verdict) const;

  parallel::Communicator& group_;
  Verdict current_, previous_;
};

}  // namespace hyperion::trainer
