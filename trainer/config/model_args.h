// The dimensions of the model that a configuration names.
#pragma once

#include "models/flavors/registry.h"
#include "trainer/config/job_config.h"

namespace hyperion {

// Throws Error(kUsage); `any_dimensions` as in models/flavors/registry.h.
inline ModelArgs model_args(const JobConfig::Model& model, bool any_dimensions = false) {
  return model_args(model.name, model.flavor, model.args, any_dimensions);
}

}  // namespace hyperion
