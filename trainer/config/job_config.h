// JobConfig is the configuration of a training job as plain data: one struct per TOML table, members named
// exactly as the TOML keys and initialised with the defaults of torchtitan v0.2.2. options.def lists the
// members, with the meaning, range and effect of each key.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/flavors/registry.h"
#include "trainer/config/choices.h"
#include "trainer/config/data_source.h"
#include "trainer/config/parameter_group.h"

namespace hyperion::config {

// A TOML table whose keys the user chooses, in the order of the file.
using TextTable = std::vector<std::pair<std::string, std::string>>;

// Pairs of a number of steps or tokens, and the number of sequences of a step from there on.
using BatchRamp = std::vector<std::pair<int64_t, int64_t>>;

struct JobConfig {
#define TABLE(Type, name, ...) struct Type {
#define GROUP(Type, name) struct Type {
#define OPTION(type, key, value, ...) type key = value;
#define OVERRIDES(Type, name, ...) Type name;
#define OVERRIDE(...)
#define END_OVERRIDES()
#define END(name) \
  }               \
  name{};
#include "trainer/config/options.def"
};

// Returns the dimensions of the configured model. `any_dimensions` is as in models/flavors/registry.h. Throws
// Error(kUsage).
inline models::ModelArgs model_args(const JobConfig::Model& model, bool any_dimensions = false) {
  return models::model_args(model.name, model.flavor, model.args, any_dimensions);
}

}  // namespace hyperion::config
