// The dimensions of the model that a configuration names.
#pragma once

#include "models/flavors/registry.h"
#include "trainer/config/job_config.h"

namespace hyperion::config {

// Throws Error(kUsage); `any_dimensions` as in models/flavors/registry.h.
inline models::ModelArgs model_args(const JobConfig::Model& model, bool any_dimensions = false) {
  return models::model_args(model.name, model.flavor, model.args, any_dimensions);
}

}  // namespace hyperion::config
