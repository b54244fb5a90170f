#include "trainer/build/model_options.h"

#include <set>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/counted.h"
#include "trainer/checkpointing/job_state.h"
#include "trainer/config/validate.h"

namespace hyperion::trainer {
namespace {

models::ActivationCheckpoint activation_checkpoint_of(const config::JobConfig::ActivationCheckpoint& options,
                                                      int64_t layer) {
  if (options.mode == config::RecomputeMode::kNone) return models::ActivationCheckpoint::kNone;
  if (options.mode == config::RecomputeMode::kFull) return models::ActivationCheckpoint::kFull;
  if (options.mode == config::RecomputeMode::kElementwise) return models::ActivationCheckpoint::kElementwise;
  const std::optional<int64_t> every = config::checkpointed_blocks(options);
  if (!every) return models::ActivationCheckpoint::kSelectiveOp;
  return (layer + 1) % *every == 0 ? models::ActivationCheckpoint::kFull
                                   : models::ActivationCheckpoint::kNone;
}

}  // namespace

parallel::ShardingOptions sharding_options(const config::JobConfig::Training& training, at::Device device,
                                           std::shared_ptr<const parallel::GatherCodec> codec) {
  return {.device = device,
          .state_device = training.enable_cpu_offload ? at::Device(at::kCPU) : device,
          .state_dtype = checkpointing::scalar_type(training.dtype),
          .compute_dtype = checkpointing::scalar_type(training.mixed_precision_param),
          .reduce_dtype = checkpointing::scalar_type(training.mixed_precision_reduce),
          .shard_alignment = device.is_cuda() ? parallel::kGpuShardAlignment : 1,
          .pack_weights = true,
          .codec = std::move(codec)};
}

models::ActivationCheckpointing activation_checkpointing(const config::JobConfig& config,
                                                         const models::Transformer& model) {
  models::ActivationCheckpointing checkpointing;
  for (int64_t layer = 0; layer < model.args().n_layers; ++layer)
    checkpointing.blocks.push_back(activation_checkpoint_of(config.activation_checkpoint, layer));
  for (const std::string& part : config.activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns)
    for (const ParameterPtr& parameter : model.parameters())
      if (parameter->fqn.find(part) != std::string::npos)
        checkpointing.always_recompute.push_back(parameter->shape);
  return checkpointing;
}

models::SequenceSplit sequence_split(const config::JobConfig& config, const parallel::Mesh& mesh, int rank) {
  return {.ranks = mesh.degree(parallel::MeshDim::kCp),
          .rank = mesh.coordinate(rank, parallel::MeshDim::kCp),
          .head_tail = config.parallelism.context_parallel_load_balancer.has_value()};
}

std::optional<std::string> separate_products(models::Transformer& model, const parallel::FsdpContext& fsdp) {
  if (!fsdp.options().pack_weights) return std::nullopt;
  std::vector<std::string> reasons;
  std::set<std::string> named;
  for (const auto& [name, linear] : model.linears()) {
    const Parameter& weight = *linear->weight();
    if (!weight.pack) continue;
    std::string reason;
    if (linear->float8() != nullptr)
      reason = "FP8 scales each weight alone";
    else if (weight.rows() % fsdp.shard().size() != 0)
      reason = fmt::format("{} rows of {} do not divide by {}", weight.rows(), name,
                           counted(fsdp.shard().size(), "shard"));
    else if (weight.trainable != weight.pack->trainable)
      reason = fmt::format("{} is {}, unlike others", name, weight.trainable ? "trained" : "frozen");
    else if (const ParameterPtr& bias = linear->bias(); bias && bias->trainable != bias->pack->trainable)
      reason =
          fmt::format("the bias of {} is {}, unlike others", name, bias->trainable ? "trained" : "frozen");
    // "layers.0.attention.wqkv" without the block: most blocks are alike.
    const std::string& pack = weight.pack->fqn;
    const std::string in_block = pack.substr(pack.find('.', pack.find('.') + 1) + 1);
    if (!reason.empty() && named.insert(in_block).second)
      reasons.push_back(fmt::format("{}: {}", in_block, reason));
  }
  const auto& sharding = fsdp.options();
  for (const ParameterPtr& stack : model.parameters()) {
    // Stacks that this rank has, in a dtype of their own; others are read where the optimizer writes them.
    if (!stack->pack || stack->shape.size() != 3 || !stack->weight.defined() ||
        stack->pack->weight.defined() || sharding.compute_dtype == sharding.state_dtype)
      continue;
    reasons.push_back(stack->trainable != stack->pack->trainable
                          ? "experts' w1 and w3: one is trained, the other frozen"
                          : fmt::format("experts' w1 and w3: {} do not divide by the shards",
                                        counted(stack->rows(), "expert")));
    break;
  }
  if (reasons.empty()) return std::nullopt;
  return fmt::format("Layers that read one input are multiplied one by one ({})", fmt::join(reasons, "; "));
}

}  // namespace hyperion::trainer
