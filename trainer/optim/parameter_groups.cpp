#include "trainer/optim/parameter_groups.h"

#include <optional>

namespace hyperion::optim {

ParameterSettings settings_of(const config::JobConfig::Optimizer& options, const std::string& fqn,
                              size_t dimensions) {
  const bool decays = options.decay_norms_and_biases || dimensions > 1;
  ParameterSettings settings{
      .beta1 = options.beta1, .beta2 = options.beta2, .weight_decay = decays ? options.weight_decay : 0};
  const std::optional<size_t> index = config::group_of(options.groups, fqn);
  if (!index) return settings;
  const config::ParameterGroup& group = options.groups[*index];
  settings.lr_scale = group.lr_scale;
  settings.beta1 = group.beta1.value_or(settings.beta1);
  settings.beta2 = group.beta2.value_or(settings.beta2);
  settings.weight_decay = group.weight_decay.value_or(settings.weight_decay);
  return settings;
}

std::vector<std::pair<std::string, double>> rates_of_groups(const config::JobConfig::Optimizer& options,
                                                            double lr) {
  std::vector<std::pair<std::string, double>> rates;
  for (size_t i = 0; i < options.groups.size(); ++i)
    rates.emplace_back("lr/" + config::name_of(options.groups, i), options.groups[i].lr_scale * lr);
  return rates;
}

}  // namespace hyperion::optim
