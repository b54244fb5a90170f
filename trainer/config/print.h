// Prints the configuration as TOML, as JSON, and as the table of key and text that checkpoints store and
// ranks compare.
#pragma once

#include <cstdint>
#include <string>

#include "trainer/config/load.h"

namespace hyperion::config {

// Prints every key as TOML in the schema's order; each line ends with the origin of its value. Unset keys are
// comments; those of [model.args] show their value from `dimensions` (hugging_face::dimensions_of()), if any.
// Reading the text again gives the same configuration.
std::string to_toml(const ResolvedConfig& resolved, const models::ModelOverrides& dimensions = {});

// Prints the same values as JSON, one object per table; unset keys are null.
std::string to_json(const JobConfig& config);

// Returns every key of the schema, in its order, with its value as TOML text.
TextTable config_entries(const JobConfig& config);
uint64_t config_hash(const TextTable& entries);

// Compares a configuration with that of a checkpoint. Returns "the configuration is the checkpoint's (hash
// ...)", or one line with "key: old -> new" for each difference.
std::string config_comparison(const TextTable& stored, const TextTable& now);

// Returns the options that give a job the model of a checkpoint: "--model.args.n_layers=10"; "" if the models
// are equal.
std::string model_options(const JobConfig::Model& saved, const JobConfig::Model& now);

}  // namespace hyperion::config
