#include "trainer/optim/optimizer.h"

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "base/error.h"
#include "base/hash.h"
#include "trainer/optim/adam.h"
#include "trainer/optim/muon.h"
#include "trainer/optim/parameter_groups.h"

namespace hyperion::optim {

std::optional<at::ScalarType> state_dtype(const config::JobConfig::Optimizer& options) {
  return options.state_dtype == checkpoint::Dtype::kBFloat16 ? std::optional(at::kBFloat16) : std::nullopt;
}

std::vector<StateKind> state_kinds(const config::JobConfig::Optimizer& options, const std::string& fqn,
                                   size_t dimensions) {
  switch (options.name) {
    case config::OptimizerName::kAdamW:
    case config::OptimizerName::kAdam:
      return Adam::kinds(options);
    case config::OptimizerName::kMuon:
      return settings_of(options, fqn, dimensions).muon ? Muon::kinds(options) : Adam::kinds(options);
  }
  throw_bug("an optimizer without a description of its states");
}

uint64_t rounding_key(const std::string& fqn, uint64_t seed) {
  return hash_text("optimizer " + fqn, seed);
}

double bytes_per_element(const std::vector<StateKind>& kinds, double master_bytes) {
  double bytes = 0;
  for (const StateKind& kind : kinds)
    bytes += kind.dtype ? static_cast<double>(c10::elementSize(*kind.dtype)) : master_bytes;
  return bytes;
}

Optimizer::Optimizer(const std::vector<parallel::ShardedParameterPtr>& parameters) {
  const at::TensorOptions like_state = parameters.front()->master().options();
  step_ = at::zeros({}, like_state.dtype(at::kFloat).pinned_memory(false));
}

const std::vector<at::Tensor>& Optimizer::add_states(const std::vector<StateKind>& kinds,
                                                     const at::Tensor& master) {
  std::vector<at::Tensor>& added = states_.emplace_back();
  for (const StateKind& kind : kinds)
    added.push_back(
        at::zeros_like(master, kind.dtype ? at::TensorOptions(*kind.dtype) : at::TensorOptions()));
  return added;
}

std::unique_ptr<Optimizer> make_optimizer(const std::vector<parallel::ShardedParameterPtr>& parameters,
                                          const config::JobConfig::Optimizer& options,
                                          const OptimizerGroups& groups, uint64_t seed) {
  switch (options.name) {
    case config::OptimizerName::kAdamW:
    case config::OptimizerName::kAdam:
      return std::make_unique<Adam>(parameters, options, seed);
    case config::OptimizerName::kMuon:
      return std::make_unique<Muon>(parameters, options, groups, seed);
  }
  throw_bug("make_optimizer() has no case for this optimizer");
}

}  // namespace hyperion::optim
