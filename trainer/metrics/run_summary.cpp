#include "trainer/metrics/run_summary.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/counted.h"
#include "trainer/config/batch_ramp.h"
#include "trainer/config/validate.h"

namespace hyperion::metrics {
namespace {

std::string checkpointing_of(const config::JobConfig::ActivationCheckpoint& options) {
  if (options.mode != config::RecomputeMode::kSelective) return std::string(text_of(options.mode));
  const std::optional<int64_t> every = config::checkpointed_blocks(options);
  if (!every) return "selective by operation";
  return *every == 1 ? "selective, every block" : fmt::format("selective, every {} blocks", *every);
}

// The optimizer updates weights of training.dtype; layers read copies of them where their dtype differs.
std::string precision_of(const config::JobConfig& config) {
  const auto& training = config.training;
  if (config.optimizer.state_dtype == checkpoint::Dtype::kBFloat16)
    return fmt::format(
        "master weights and gradients {}, optimizer states bfloat16 (rounded stochastically), weights of the "
        "forward and backward {}, gradients reduced in {}",
        text_of(training.dtype), text_of(training.mixed_precision_param),
        text_of(training.mixed_precision_reduce));
  if (training.dtype == training.mixed_precision_param)
    return fmt::format("weights, gradients and optimizer states {}, gradients reduced in {}",
                       text_of(training.dtype), text_of(training.mixed_precision_reduce));
  return fmt::format(
      "master weights, gradients and optimizer states {}, compute copies of the weights {}, gradients "
      "reduced in {}",
      text_of(training.dtype), text_of(training.mixed_precision_param),
      text_of(training.mixed_precision_reduce));
}

// curve_cuts() warns of a warm-up that is longer than its curve and was cut to it.
std::string warmup_of(const config::JobConfig& config) {
  const int64_t configured = config.lr_scheduler.warmup_steps;
  const int64_t warmup =
      std::min(configured, config.lr_scheduler.total_steps.value_or(config.training.steps));
  if (warmup < configured) return fmt::format("{}, cut from {}", warmup, configured);
  return fmt::format("{}{}", warmup, warmup > config.training.steps ? ", more than this run has steps" : "");
}

std::vector<std::string> context_parallelism_of(const config::JobConfig& config) {
  const auto& p = config.parallelism;
  if (p.context_parallel_degree == 1) return {};
  return {fmt::format("Context parallelism: groups of {} share each sequence, {}, and {}",
                      counted(p.context_parallel_degree, "rank"),
                      p.context_parallel_load_balancer
                          ? "two chunks each (headtail)"
                          : "one chunk each (no balancer: the last rank computes the most)",
                      config::passes_keys_in_ring(config) ? "pass keys and values on from rank to rank"
                                                          : "gather keys and values")};
}

// Describes the effect of tensor parallelism and of the keys related to it.
std::vector<std::string> tensor_parallelism_of(const config::JobConfig& config, bool cpu) {
  const auto& p = config.parallelism;
  if (p.tensor_parallel_degree == 1) return {};
  std::vector<std::string> lines = {fmt::format(
      "Tensor parallelism: groups of {} divide each layer and between layers the sequence; {}",
      counted(p.tensor_parallel_degree, "rank"),
      p.disable_loss_parallel ? "the logits are gathered before the loss"
                              : "each rank computes the logits and the loss of its part of the vocabulary")};
  if (!p.enable_async_tensor_parallel) return lines;
  lines.push_back(fmt::format(
      "parallelism.enable_async_tensor_parallel: {}{}",
      cpu ? "on a CPU the plain form runs, exchanges and products one after the other"
          : "what blocks exchange travels in pieces under their products",
      config.compile.enable ? "; compile.enable has no effect on it, which needs no compiler" : ""));
  return lines;
}

}  // namespace

std::vector<std::string> run_summary(const config::JobConfig& config, const RunPlace& place) {
  const auto& training = config.training;
  const int64_t microbatches = config::microbatches_of(training, place.batch_degree);
  const int64_t global = microbatches * training.local_batch_size * place.batch_degree;
  const bool cpu = place.device == "CPU";
  std::vector<std::string> lines = {
      fmt::format("Device: {}{}; mesh {}", place.device,
                  cpu ? fmt::format(", {} per rank", counted(place.threads, "thread")) : "", place.mesh),
      fmt::format("Trainer is initialized with local batch size {}, global batch size {}, gradient "
                  "accumulation steps {}, sequence length {}, total steps {} (warmup {}): {} tokens per step",
                  training.local_batch_size, global, microbatches, training.seq_len, training.steps,
                  warmup_of(config), global * training.seq_len),
      fmt::format("Precision: {}; activation checkpointing {}; ema {}", precision_of(config),
                  checkpointing_of(config.activation_checkpoint),
                  config.ema.enable ? fmt::format("{}", config.ema.decay) : "off")};
  if (!training.global_batch_ramp.empty())
    lines.push_back(fmt::format(
        "training.global_batch_ramp: {}; gradient accumulation follows; the learning rate counts steps",
        config::BatchSchedule(training, place.batch_degree).describe()));
  for (std::string& line : context_parallelism_of(config)) lines.push_back(std::move(line));
  for (std::string& line : tensor_parallelism_of(config, cpu)) lines.push_back(std::move(line));
  return lines;
}

}  // namespace hyperion::metrics
