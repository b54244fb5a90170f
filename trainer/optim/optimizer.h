// An Optimizer updates the weights and describes its states as a list. Checkpoints, the replica audit, the
// copy of a tied table and the memory estimate read that list; none of them knows a state by name.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "checkpoint/types/object.h"
#include "parallel/fsdp/sharded_parameter.h"
#include "trainer/config/job_config.h"
#include "trainer/optim/matrix_exchange.h"
#include "trainer/optim/optimizer_states.h"

namespace hyperion::optim {

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Makes one update from the sharded gradients at the schedule's learning rate `lr`, and writes the
  // compute-dtype copy of every shard too. `skip` is a 0-dim float tensor on the gradients' device: if it is
  // 1 (a non-finite loss or norm), no weight and no state changes; the device decides that. `divisor` (0-dim)
  // divides the gradients first; it is allowed only if divides_gradients().
  virtual void step(double lr, const at::Tensor& skip,
                    const std::optional<at::Tensor>& divisor = std::nullopt) = 0;
  // Returns whether step() can divide the gradients in its own pass over them.
  virtual bool divides_gradients() const { return false; }

  // Returns the states of a parameter, which this rank need not hold. Frozen parameters have none, and others
  // may have none.
  std::vector<StateKind> kinds_of(const Parameter& parameter) const {
    return parameter.trainable ? kinds_of_trainable(parameter) : std::vector<StateKind>();
  }
  // Returns a parameter's settings in the form and order of torch.optim's param_groups, without learning
  // rates. This rank need not hold the parameter.
  virtual std::vector<std::pair<const char*, checkpoint::Object>> settings(
      const Parameter& parameter) const = 0;

  // Returns the states of parameter i, in the constructor's order: one tensor [local rows, ...] per kind.
  const std::vector<at::Tensor>& states(size_t i) const { return states_.at(i); }
  // The number of updates done (fp32, 0-dim), one count for all parameters.
  const at::Tensor& step_count() const { return step_; }

 protected:
  explicit Optimizer(const std::vector<parallel::ShardedParameterPtr>& parameters);
  virtual std::vector<StateKind> kinds_of_trainable(const Parameter& parameter) const = 0;
  // Allocates the states of the next parameter as zeros, so that the first step allocates nothing.
  const std::vector<at::Tensor>& add_states(const std::vector<StateKind>& kinds, const at::Tensor& master);
  // Takes states that another optimizer keeps of the next parameter.
  void adopt_states(const std::vector<at::Tensor>& states) { states_.push_back(states); }

  at::Tensor step_;

 private:
  std::vector<std::vector<at::Tensor>> states_;  // by parameter
};

// The process groups whose ranks share the matrices of dense parameters, and of experts that expert parallel
// ranks divide.
struct OptimizerGroups {
  MatrixGroups dense{}, experts{};
};

// Creates the optimizer options.name. `parameters` are all parameters of this rank; gradients must be bound,
// except for frozen ones. An optimizer of matrices exchanges them in `groups`, which outlive it. States in
// bf16 are rounded by the random numbers of `seed`.
std::unique_ptr<Optimizer> make_optimizer(const std::vector<parallel::ShardedParameterPtr>& parameters,
                                          const config::JobConfig::Optimizer& options,
                                          const OptimizerGroups& groups = {}, uint64_t seed = 0);

}  // namespace hyperion::optim
