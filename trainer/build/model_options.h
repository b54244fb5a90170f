// Converts configuration values to the options of parallel/ and models/: sharding, activation checkpointing
// and sequence split.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "models/layers/activation_checkpoint.h"
#include "models/transformer.h"
#include "parallel/fsdp/fsdp.h"
#include "parallel/fsdp/sharded_parameter.h"
#include "trainer/config/job_config.h"

namespace hyperion::trainer {

parallel::ShardingOptions sharding_options(const config::JobConfig::Training& training, at::Device device,
                                           std::shared_ptr<const parallel::GatherCodec> codec);
models::ActivationCheckpointing activation_checkpointing(const config::JobConfig& config,
                                                         const models::Transformer& model);

// Returns how context parallel ranks split each sequence.
models::SequenceSplit sequence_split(const config::JobConfig& config, const parallel::Mesh& mesh, int rank);

// Names the layers that read one input but cannot be packed into one product (Parameter::pack), and why.
// Returns nullopt if all are packed.
std::optional<std::string> separate_products(models::Transformer& model, const parallel::FsdpContext& fsdp);

}  // namespace hyperion::trainer
