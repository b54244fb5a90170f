// What is said of a step that takes a CPU too long.
#include "trainer/metrics/slow_steps.h"

#include <catch2/catch.hpp>

#include "models/flavors/registry.h"

namespace hyperion::metrics {

using Catch::Contains;

TEST_CASE("a step that takes a CPU longer than a minute is warned of with the way out") {
  const models::ModelArgs model = models::model_args("llama3", "70B");
  config::JobConfig config;
  config.training.local_batch_size = 8;
  config.training.seq_len = 8192;
  config.parallelism.tensor_parallel_degree = 8;
  // 65,536 tokens of 6 x 69.5e9 parameters and of 80 layers' attention, over 8 ranks: 3.7e15 FLOP
  const std::string job = slow_step_warning(config, model, 1, 0.5e12).value();
  CHECK_THAT(job, Contains("3680 TFLOP") && Contains("reaches 0.5 TFLOP/s") && Contains(" 2:02:") &&
                      Contains("train a smaller model") && !Contains("simulated"));
  config.comm.mode = config::CommMode::kFakeBackend;
  CHECK_THAT(slow_step_warning(config, model, 1, 0.5e12).value(),
             Contains("`hyperion check`") && Contains("docs/simulated_gpu.md") &&
                 Contains("TERM or Ctrl-C ends a dry run at once"));
  CHECK_FALSE(slow_step_warning(config, model, 1, 1e14));  // 37 s
  CHECK(slow_step_warning(config, model, 2, 1e14));        // two microbatches
  CHECK_FALSE(slow_step_warning(config, models::model_args("llama3", "debugmodel"), 1, 0.5e12));
}

}  // namespace hyperion::metrics
