#include "trainer/optim/optimizer.h"

#include <algorithm>
#include <iterator>

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "base/error.h"
#include "base/hash.h"
#include "trainer/optim/adam.h"
#include "trainer/optim/muon.h"
#include "trainer/optim/parameter_groups.h"

namespace hyperion::optim {
namespace {

using Parameters = std::vector<parallel::ShardedParameterPtr>;
using Options = config::JobConfig::Optimizer;

// A row of the table of optimizers.
struct Method {
  config::OptimizerName name;
  // The states of a parameter that the optimizer updates.
  std::vector<StateKind> (*kinds)(const Options& options);
  std::unique_ptr<Optimizer> (*make)(const Parameters& parameters, const Options& options,
                                     const OptimizerGroups& groups, uint64_t seed);
};

std::unique_ptr<Optimizer> make_adam(const Parameters& parameters, const Options& options,
                                     const OptimizerGroups&, uint64_t seed) {
  return std::make_unique<Adam>(parameters, options, seed);
}
std::unique_ptr<Optimizer> make_muon(const Parameters& parameters, const Options& options,
                                     const OptimizerGroups& groups, uint64_t seed) {
  return std::make_unique<Muon>(parameters, options, groups, seed);
}

constexpr Method kMethods[] = {
    {config::OptimizerName::kAdamW, Adam::kinds, make_adam},
    {config::OptimizerName::kAdam, Adam::kinds, make_adam},
    {config::OptimizerName::kMuon, Muon::kinds, make_muon},
};

const Method& method_of(config::OptimizerName name) {
  const auto found = std::ranges::find(kMethods, name, &Method::name);
  if (found == std::end(kMethods)) throw_bug("{} is not in the table of optimizers", text_of(name));
  return *found;
}

}  // namespace

std::optional<at::ScalarType> state_dtype(const config::JobConfig::Optimizer& options) {
  return options.state_dtype == checkpoint::Dtype::kBFloat16 ? std::optional(at::kBFloat16) : std::nullopt;
}

std::vector<StateKind> state_kinds(const config::JobConfig::Optimizer& options, const std::string& fqn,
                                   size_t dimensions) {
  return method_of(settings_of(options, fqn, dimensions).optimizer).kinds(options);
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
  return method_of(options.name).make(parameters, options, groups, seed);
}

}  // namespace hyperion::optim
