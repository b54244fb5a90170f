// The configuration of a training job as plain data: one struct per TOML table, members named exactly as the
// TOML keys, initialised with the defaults of torchtitan v0.2.2. The members are those of options.def, which
// says of each key what it means, its range and whether it has an effect.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/flavors/registry.h"
#include "trainer/config/choices.h"

namespace hyperion::config {

// A TOML table with keys of the user's own, in the order of the file.
using TextTable = std::vector<std::pair<std::string, std::string>>;

struct JobConfig {
#define TABLE(Type, name, ...) struct Type {
#define GROUP(Type, name) struct Type {
#define OPTION(type, key, value, ...) type key = value;
#define OVERRIDES(Type, name, ...) Type name;
#define OVERRIDE(...)
#define END_OVERRIDES()
#define END(name) \
  }               \
  name;
#include "trainer/config/options.def"
};

// The dimensions of the model that it names. Throws Error(kUsage); `any_dimensions` as in
// models/flavors/registry.h.
inline models::ModelArgs model_args(const JobConfig::Model& model, bool any_dimensions = false) {
  return models::model_args(model.name, model.flavor, model.args, any_dimensions);
}

}  // namespace hyperion::config
