// A configuration as a table of key and text: what checkpoints hold and ranks compare.
#pragma once

#include <cstdint>
#include <string>

#include "trainer/config/job_config.h"

namespace hyperion::config {

// Every key of the schema, in its order, with its value as TOML writes it.
TextTable config_entries(const JobConfig& config);
uint64_t config_hash(const TextTable& entries);

// How a configuration differs from the one of a checkpoint: "the configuration is the checkpoint's (hash
// ...)", or one line with a "key: old -> new" each.
std::string config_comparison(const TextTable& stored, const TextTable& now);

// The options that give a job the model of a checkpoint: "--model.args.n_layers=10"; "" when all are alike.
std::string model_options(const JobConfig::Model& saved, const JobConfig::Model& now);

}  // namespace hyperion::config
