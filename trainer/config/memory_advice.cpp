#include "trainer/config/memory_advice.h"

#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "trainer/config/validate.h"

namespace hyperion::config {
namespace {

// Returns the settings that keep fewer activations than the present mode; "" if there are none.
std::string further_checkpointing(const JobConfig::ActivationCheckpoint& options) {
  const auto advice = [&](std::string_view modes) {
    return fmt::format("set activation_checkpoint.mode = {} (\"{}\" now)", modes, text_of(options.mode));
  };
  const std::string by_operation = "\"selective\" with selective_ac_option = \"op\" or \"full\"";
  switch (options.mode) {
    case RecomputeMode::kNone:
      return advice("\"elementwise\", " + by_operation);
    case RecomputeMode::kElementwise:
      return advice(by_operation);
    case RecomputeMode::kSelective:
      return checkpointed_blocks(options) == 1 ? "" : advice("\"full\"");
    case RecomputeMode::kFull:
    case RecomputeMode::kMemoryBudget:  // refused
      return "";
  }
  return "";
}

// Tokens of a sequence per rank, between layers. With fewer tokens cheaper ways save memory.
constexpr int64_t kLongSequence = 8192;

}  // namespace

std::string context_advice(const JobConfig& config) {
  const int64_t degree = config.parallelism.context_parallel_degree;
  if (config.training.seq_len / (degree * config.parallelism.tensor_parallel_degree) <= kLongSequence)
    return "";
  return fmt::format(
      "raise parallelism.context_parallel_degree ({} now), whose ranks share each sequence, on more ranks "
      "where all do",
      degree);
}

std::string memory_advice(const JobConfig& config, bool of_gpu) {
  const auto& training = config.training;
  std::vector<std::string> ways;
  ways.push_back(training.local_batch_size > 1
                     ? fmt::format("lower training.local_batch_size ({} now) or training.seq_len ({} now)",
                                   training.local_batch_size, training.seq_len)
                     : fmt::format("lower training.seq_len ({} now)", training.seq_len));
  if (std::string further = further_checkpointing(config.activation_checkpoint); !further.empty())
    ways.push_back(std::move(further));
  if (std::string context = context_advice(config); !context.empty()) ways.push_back(std::move(context));
  const auto& parallelism = config.parallelism;
  if (parallelism.fsdp_reshard_after_forward == ReshardAfterForward::kNever)
    ways.emplace_back("set parallelism.fsdp_reshard_after_forward = \"always\" (\"never\" now)");
  if (parallelism.fsdp_reduce_gradients == ReduceGradients::kOncePerStep && training.global_batch_size > 0)
    ways.emplace_back("set parallelism.fsdp_reduce_gradients = \"every_microbatch\" (\"once_per_step\" now)");
  if (of_gpu && !training.enable_cpu_offload)
    ways.emplace_back(
        "set training.enable_cpu_offload = true (false now), with which weights, gradients and optimizer "
        "state are in the host's memory and steps take longer");
  ways.emplace_back("shard over more ranks");
  if (parallelism.data_parallel_replicate_degree > 1)
    ways.back() += fmt::format(" in place of replicas (parallelism.data_parallel_replicate_degree = {} now)",
                               parallelism.data_parallel_replicate_degree);
  return fmt::format("{}, or give the job more memory", fmt::join(ways, ", "));
}

}  // namespace hyperion::config
