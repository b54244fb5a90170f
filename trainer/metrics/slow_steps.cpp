#include "trainer/metrics/slow_steps.h"

#include <fmt/format.h>

#include "trainer/config/validate.h"
#include "trainer/metrics/flops.h"
#include "trainer/metrics/step_line.h"

namespace hyperion::metrics {

std::optional<std::string> slow_step_warning(const config::JobConfig& config, const models::ModelArgs& model,
                                             int64_t microbatches, double peak) {
  constexpr double kLong = 60;  // seconds
  const auto& training = config.training;
  const double tokens = static_cast<double>(microbatches * training.local_batch_size * training.seq_len);
  const double flops = tokens * flops_per_token_causal(models::describe_model(model), training.seq_len) /
                       static_cast<double>(config.parallelism.context_parallel_degree *
                                           config.parallelism.tensor_parallel_degree *
                                           config.parallelism.pipeline_parallel_degree);
  if (flops < kLong * peak) return std::nullopt;
  return fmt::format(
      "a step of a rank is {:.0f} TFLOP: on this CPU, which reaches {:.2g} TFLOP/s in matrix products, {} "
      "(hours:minutes:seconds) or longer; {}",
      flops / 1e12, peak / 1e12, hours_minutes_seconds(flops / peak),
      config::is_dry_run(config)
          ? "`hyperion check` says without a step what memory a rank needs, and a simulated GPU with "
            "HYPERION_SIMULATED_COMPUTE=off computes nothing (docs/simulated_gpu.md); TERM or Ctrl-C ends a "
            "dry run at once"
          : "train a smaller model, take fewer tokens per step, or train on GPUs");
}

}  // namespace hyperion::metrics
