#include "trainer/metrics/run_summary.h"

#include <catch2/catch.hpp>

namespace hyperion::metrics {

TEST_CASE("What is running stands in three lines") {
  config::JobConfig config;
  config.training.local_batch_size = 2;
  config.training.global_batch_size = 24;
  config.training.seq_len = 128;
  config.training.steps = 50;
  config.lr_scheduler.warmup_steps = 5;
  config.ema.enable = true;
  config.ema.decay = 0.99;
  config.activation_checkpoint.mode = config::RecomputeMode::kSelective;
  config.activation_checkpoint.selective_ac_option = "2";
  CHECK(run_summary(config, {"CPU", 1, "2 x 2 = 4 ranks", 4}) ==
        std::vector<std::string>{
            "Device: CPU, 1 thread per rank; mesh 2 x 2 = 4 ranks",
            "Trainer is initialized with local batch size 2, global batch size 24, gradient accumulation "
            "steps 3, sequence length 128, total steps 50 (warmup 5): 3072 tokens per step",
            "Precision: master weights, gradients and optimizer states float32, compute copies of the "
            "weights bfloat16, gradients reduced in float32; activation checkpointing selective, every 2 "
            "blocks; ema 0.99"});

  config.training.dtype = config.training.mixed_precision_param = checkpoint::Dtype::kBFloat16;
  CHECK(run_summary(config, {"CPU", 1, "1 rank", 1})[2].starts_with(
      "Precision: weights, gradients and optimizer states bfloat16, gradients reduced in float32;"));

  config.training.global_batch_size = -1;
  config.ema.enable = false;
  config.activation_checkpoint.selective_ac_option = "op";
  const auto lines = run_summary(config, {"NVIDIA H100", 16, "8 ranks", 8});
  CHECK(lines[0] == "Device: NVIDIA H100; mesh 8 ranks");
  CHECK(lines[1].find("global batch size 16, gradient accumulation steps 1,") != std::string::npos);
  CHECK(lines[2].ends_with("selective by operation; ema off"));
}

TEST_CASE("Tensor parallelism and what becomes of the keys beside it is said") {
  config::JobConfig config;
  config.parallelism.tensor_parallel_degree = 2;
  auto lines = run_summary(config, {"CPU", 1, "2 ranks", 1});
  REQUIRE(lines.size() == 4);
  CHECK(lines[3] ==
        "Tensor parallelism: groups of 2 ranks divide each layer and between layers the sequence; each rank "
        "computes the logits and the loss of its part of the vocabulary");
  config.parallelism.disable_loss_parallel = config.parallelism.enable_async_tensor_parallel = true;
  config.compile.enable = true;
  lines = run_summary(config, {"CPU", 1, "2 ranks", 1});
  REQUIRE(lines.size() == 5);
  CHECK(lines[3].ends_with("the logits are gathered before the loss"));
  CHECK(lines[4] ==
        "parallelism.enable_async_tensor_parallel: on a CPU the plain form runs, exchanges and products one "
        "after the other; compile.enable has no effect on it, which needs no compiler");
  CHECK(run_summary(config, {"NVIDIA H100", 1, "2 ranks", 1})[4] ==
        "parallelism.enable_async_tensor_parallel: what blocks exchange travels in pieces under their "
        "products; "
        "compile.enable has no effect on it, which needs no compiler");
}

TEST_CASE("A warm-up that is longer than the run or was cut says so") {
  config::JobConfig config;
  config.training.steps = 1;
  config.lr_scheduler.warmup_steps = 2;
  const auto has = [&](const char* text) {
    return run_summary(config, {"CPU", 1, "1 rank", 1})[1].find(text) != std::string::npos;
  };
  CHECK(has("total steps 1 (warmup 1, cut from 2):"));
  config.lr_scheduler.total_steps = 10;
  CHECK(has("total steps 1 (warmup 2, more than this run has steps):"));
  config.training.steps = 2;
  CHECK(has("total steps 2 (warmup 2):"));
}

}  // namespace hyperion::metrics
