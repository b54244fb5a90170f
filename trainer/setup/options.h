// From configuration values to what the parts take: model dimensions, sharding, activation checkpointing and
// optimizer options.
#pragma once

#include "models/flavors/model_args.h"
#include "parallel/sharded_parameter.h"
#include "trainer/config/job_config.h"
#include "trainer/config/validate.h"
#include "trainer/fsdp_model.h"
#include "trainer/optim/adam.h"
#include "trainer/optim/ema.h"

namespace hyperion {

ShardingOptions sharding_options(const JobConfig::Training& training, at::Device device,
                                 std::shared_ptr<const GatherCodec> codec);
FsdpModelOptions fsdp_model_options(const JobConfig& config, const Transformer& model);
AdamOptions adam_options(const JobConfig::Optimizer& optimizer);
EmaOptions ema_options(const JobConfig::Ema& ema);

}  // namespace hyperion
