// From configuration values to what parallel/ and models/ take: sharding and activation checkpointing.
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

// How context parallel ranks share each sequence.
models::SequenceSplit sequence_split(const config::JobConfig& config, const parallel::Mesh& mesh, int rank);

// Which layers that read one input are not one product (Parameter::pack) although weights are laid side by
// side where they can, and why; nothing where all are.
std::optional<std::string> separate_products(models::Transformer& model, const parallel::FsdpContext& fsdp);

}  // namespace hyperion::trainer
