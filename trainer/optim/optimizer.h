// What updates the weights. An optimizer describes its states as a list, which checkpoints, the audit of
// replicas, the copy of a tied table and the memory estimate read: none of them knows a state by its name.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "checkpoint/types/object.h"
#include "parallel/fsdp/sharded_parameter.h"
#include "trainer/config/job_config.h"
#include "trainer/optim/optimizer_states.h"

namespace hyperion::optim {

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // One update from the sharded gradients, which writes the compute-dtype copy of every shard too. `skip`:
  // 0-dim float tensor on the gradients' device; where it is 1 (a non-finite loss or norm) no weight and no
  // state changes, decided on the device. `divisor`: 0-dim, what the gradients are divided by first; only
  // where divides_gradients().
  virtual void step(double lr, const at::Tensor& skip,
                    const std::optional<at::Tensor>& divisor = std::nullopt) = 0;
  // Whether the update divides gradients in its own pass over them.
  virtual bool divides_gradients() const { return false; }

  // The states of a parameter of the model, which this rank need not hold; some parameters may have none, and
  // frozen ones have none.
  std::vector<StateKind> kinds_of(const Parameter& parameter) const {
    return parameter.trainable ? kinds_of_trainable(parameter) : std::vector<StateKind>();
  }
  // Its settings as torch.optim's param_groups have them, in their order, without learning rates.
  virtual std::vector<std::pair<const char*, checkpoint::Object>> settings() const = 0;

  // The states of parameter i in the order given, one tensor for each of its kinds: [local rows, ...].
  const std::vector<at::Tensor>& states(size_t i) const { return states_.at(i); }
  // fp32, 0-dim: updates done. One count for all parameters.
  const at::Tensor& step_count() const { return step_; }

 protected:
  explicit Optimizer(const std::vector<parallel::ShardedParameterPtr>& parameters);
  virtual std::vector<StateKind> kinds_of_trainable(const Parameter& parameter) const = 0;
  // Allocates the states of the next parameter as zeros: nothing is allocated at the first step.
  const std::vector<at::Tensor>& add_states(const std::vector<StateKind>& kinds, const at::Tensor& master);

  at::Tensor step_;

 private:
  std::vector<std::vector<at::Tensor>> states_;  // by parameter
};

// The optimizer of options.name. parameters: all that this rank holds, with bound gradients but for frozen
// ones.
std::unique_ptr<Optimizer> make_optimizer(const std::vector<parallel::ShardedParameterPtr>& parameters,
                                          const config::JobConfig::Optimizer& options);

}  // namespace hyperion::optim
