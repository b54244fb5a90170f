// From configuration values to what parallel/ and models/ take: sharding and activation checkpointing.
#pragma once

#include <memory>

#include "models/activation_checkpoint.h"
#include "models/transformer.h"
#include "parallel/sharded_parameter.h"
#include "trainer/config/job_config.h"

namespace hyperion {

ShardingOptions sharding_options(const JobConfig::Training& training, at::Device device,
                                 std::shared_ptr<const GatherCodec> codec);
ActivationCheckpointing activation_checkpointing(const JobConfig& config, const Transformer& model);

}  // namespace hyperion
