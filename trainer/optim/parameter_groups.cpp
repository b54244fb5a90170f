#include "trainer/optim/parameter_groups.h"

#include <optional>

namespace hyperion::optim {

ParameterSettings settings_of(const config::JobConfig::Optimizer& options, const std::string& fqn,
                              size_t dimensions) {
  using config::OptimizerName;
  const std::optional<size_t> index = config::group_of(options.groups, fqn);
  const config::ParameterGroup group = index ? options.groups[*index] : config::ParameterGroup();
  const bool is_matrix = dimensions > 1 && !fqn.ends_with("bias");  // experts' biases are [experts, n]
  const bool only_matrices = updates_matrices(options.name);
  const OptimizerName of_group = group.optimizer.value_or(options.name);
  const bool by_adamw =
      only_matrices && !(updates_matrices(of_group) && is_matrix && fqn.starts_with("layers."));
  const bool decays = options.decay_norms_and_biases || is_matrix;
  const double scale = by_adamw ? options.muon.adamw_lr_scale : 1;
  return {.lr_scale = scale * group.lr_scale,
          .beta1 = group.beta1.value_or(options.beta1),
          .beta2 = group.beta2.value_or(options.beta2),
          .weight_decay = group.weight_decay.value_or(decays ? options.weight_decay : 0),
          .optimizer = by_adamw ? OptimizerName::kAdamW : options.name};
}

std::vector<std::pair<std::string, double>> rates_of_groups(const config::JobConfig::Optimizer& options,
                                                            double lr) {
  std::vector<std::pair<std::string, double>> rates;
  for (size_t i = 0; i < options.groups.size(); ++i)
    rates.emplace_back("lr/" + config::name_of(options.groups, i), options.groups[i].lr_scale * lr);
  return rates;
}

}  // namespace hyperion::optim
