#include "trainer/run_summary.h"

#include <fmt/format.h>

namespace hyperion {
namespace {

std::string checkpointing_of(const JobConfig::ActivationCheckpoint& options) {
  if (options.mode != "selective") return options.mode;
  if (options.selective_ac_option == "op") return "selective by operation";
  return fmt::format("selective, every {} blocks", options.selective_ac_option);
}

}  // namespace

std::vector<std::string> run_summary(const JobConfig& config, const RunPlace& place) {
  const auto& training = config.training;
  const int64_t microbatch = training.local_batch_size * place.batch_degree;
  const int64_t global = training.global_batch_size > 0 ? training.global_batch_size : microbatch;
  const bool cpu = place.device == "CPU";
  return {
      fmt::format(
          "Device: {}{}; mesh {}", place.device,
          cpu ? fmt::format(", {} thread{} a rank", place.threads, place.threads == 1 ? "" : "s") : "",
          place.mesh),
      fmt::format("Trainer is initialized with local batch size {}, global batch size {}, gradient "
                  "accumulation steps {}, sequence length {}, total steps {} (warmup {}): {} tokens a step",
                  training.local_batch_size, global, global / microbatch, training.seq_len, training.steps,
                  config.lr_scheduler.warmup_steps, global * training.seq_len),
      fmt::format("Parameters {}, gradients reduced in {}, states {}; activation checkpointing {}; ema {}",
                  training.mixed_precision_param, training.mixed_precision_reduce, training.dtype,
                  checkpointing_of(config.activation_checkpoint),
                  config.ema.enable ? fmt::format("{}", config.ema.decay) : "off")};
}

}  // namespace hyperion
