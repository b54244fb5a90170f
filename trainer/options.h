// From configuration values to what the parts take: model dimensions, sharding, walk and optimizer options. Pure.
#pragma once

#include "models/model_args.h"
#include "parallel/sharded_parameter.h"
#include "trainer/config/job_config.h"
#include "trainer/optim/adam.h"
#include "trainer/unit_walk.h"

namespace hyperion {

ModelArgs model_args(const JobConfig::Model& model);
ShardingOptions sharding_options(const JobConfig::Training& training, at::Device device);
WalkOptions walk_options(const JobConfig& config, int64_t n_layers);
AdamOptions adam_options(const JobConfig::Optimizer& optimizer);

}  // namespace hyperion
