// The configuration as text: TOML, JSON, and the table of key and text that checkpoints hold and ranks
// compare.
#pragma once

#include <cstdint>
#include <string>

#include "trainer/config/load.h"

namespace hyperion::config {

// TOML with every key, in the schema's order; the end of each line says where the value came from. Unset keys
// are comments, those of [model.args] with their value in `dimensions` (hugging_face::dimensions_of()) where
// they have one. Reading it again gives the same configuration.
std::string to_toml(const ResolvedConfig& resolved, const models::ModelOverrides& dimensions = {});

// The same values as JSON, one object per table; unset keys are null.
std::string to_json(const JobConfig& config);

// Every key of the schema, in its order, with its value as TOML writes it.
TextTable config_entries(const JobConfig& config);
uint64_t config_hash(const TextTable& entries);

// How a configuration differs from the one of a checkpoint: "the configuration is the checkpoint's (hash
// ...)", or one line with a "key: old -> new" each.
std::string config_comparison(const TextTable& stored, const TextTable& now);

// The options that give a job the model of a checkpoint: "--model.args.n_layers=10"; "" when all are alike.
std::string model_options(const JobConfig::Model& saved, const JobConfig::Model& now);

}  // namespace hyperion::config
