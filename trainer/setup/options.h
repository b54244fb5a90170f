// From configuration values to what parallel/ and models/ take: sharding and activation checkpointing.
#pragma once

#include <memory>

#include "parallel/sharded_parameter.h"
#include "trainer/config/job_config.h"
#include "trainer/fsdp_model.h"

namespace hyperion {

ShardingOptions sharding_options(const JobConfig::Training& training, at::Device device,
                                 std::shared_ptr<const GatherCodec> codec);
FsdpModelOptions fsdp_model_options(const JobConfig& config, const Transformer& model);

}  // namespace hyperion
