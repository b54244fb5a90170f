// The settings with which the optimizer updates each parameter: those of [optimizer], or of the group in
// [[optimizer.groups]] that the parameter's name puts it into. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "trainer/config/job_config.h"

namespace hyperion::optim {

struct ParameterSettings {
  double lr_scale = 1;  // the learning rate is this times the schedule's
  double beta1, beta2, weight_decay;
  // The optimizer that updates it: AdamW for what an optimizer of matrices does not update.
  config::OptimizerName optimizer = config::OptimizerName::kAdamW;
  bool operator==(const ParameterSettings&) const = default;
};

// Returns the settings of a parameter with that name and number of dimensions.
ParameterSettings settings_of(const config::JobConfig::Optimizer& options, const std::string& fqn,
                              size_t dimensions);

// Returns the learning rate of each group at a step whose schedule has `lr`: {"lr/NAME", rate}.
std::vector<std::pair<std::string, double>> rates_of_groups(const config::JobConfig::Optimizer& options,
                                                            double lr);

}  // namespace hyperion::optim
