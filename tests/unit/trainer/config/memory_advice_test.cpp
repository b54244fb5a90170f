// What is advised to a job that ran out of memory.
#include "trainer/config/memory_advice.h"

#include <catch2/catch.hpp>

namespace hyperion::config {
namespace {

using Catch::Contains;

std::string advice_with(RecomputeMode mode, const std::string& option = "2") {
  JobConfig config;
  config.activation_checkpoint.mode = mode;
  config.activation_checkpoint.selective_ac_option = option;
  return memory_advice(config, /*of_gpu=*/false);
}

}  // namespace

TEST_CASE("out of memory advises activation checkpointing that keeps less than the mode in force") {
  CHECK_THAT(advice_with(RecomputeMode::kNone),
             Contains("= \"elementwise\", \"selective\" with selective_ac_option = \"op\" or \"full\" "
                      "(\"none\" now)"));
  CHECK_THAT(advice_with(RecomputeMode::kElementwise),
             Contains("= \"selective\" with selective_ac_option = \"op\" or \"full\" (\"elementwise\" now)"));
  for (const char* option : {"op", "2"})
    CHECK_THAT(advice_with(RecomputeMode::kSelective, option),
               Contains("activation_checkpoint.mode = \"full\" (\"selective\" now)"));
  CHECK_THAT(advice_with(RecomputeMode::kSelective, "1"), !Contains("activation_checkpoint"));
  CHECK_THAT(advice_with(RecomputeMode::kFull), !Contains("activation_checkpoint"));
}

TEST_CASE("out of memory advises no key that cannot be lowered further") {
  JobConfig config;
  config.activation_checkpoint.mode = RecomputeMode::kFull;
  config.training.local_batch_size = 8;
  config.training.seq_len = 2048;
  CHECK(memory_advice(config, /*of_gpu=*/false) ==
        "lower training.local_batch_size (8 now) or training.seq_len (2048 now), shard over more ranks, or "
        "give the job more memory");
  config.parallelism.fsdp_reduce_gradients = ReduceGradients::kOncePerStep;
  CHECK_THAT(memory_advice(config, /*of_gpu=*/false),
             !Contains("fsdp_reduce_gradients"));  // nothing is accumulated
  config.training.global_batch_size = 64;
  CHECK_THAT(
      memory_advice(config, /*of_gpu=*/false),
      Contains("set parallelism.fsdp_reduce_gradients = \"every_microbatch\" (\"once_per_step\" now)"));
  config.parallelism.fsdp_reduce_gradients = ReduceGradients::kEveryMicrobatch;
  config.training.local_batch_size = 1;
  config.parallelism.data_parallel_replicate_degree = 4;
  config.parallelism.fsdp_reshard_after_forward = ReshardAfterForward::kNever;
  CHECK(memory_advice(config, /*of_gpu=*/false) ==
        "lower training.seq_len (2048 now), set parallelism.fsdp_reshard_after_forward = \"always\" "
        "(\"never\" now), shard over more ranks in place of replicas "
        "(parallelism.data_parallel_replicate_degree = 4 now), or give the job more memory");
}

TEST_CASE("a GPU that is out of memory is told of offloading") {
  JobConfig config;
  CHECK_THAT(memory_advice(config, /*of_gpu=*/true),
             Contains("set training.enable_cpu_offload = true (false now), with which"));
  config.training.enable_cpu_offload = true;
  CHECK(memory_advice(config, /*of_gpu=*/true) == memory_advice(config, /*of_gpu=*/false));
}

TEST_CASE("out of memory names context parallelism where a rank has many tokens of a sequence") {
  JobConfig config;
  config.training.seq_len = 8192;
  CHECK_THAT(memory_advice(config, /*of_gpu=*/false), !Contains("context_parallel_degree"));
  config.training.seq_len = 131072;
  CHECK_THAT(memory_advice(config, /*of_gpu=*/false),
             Contains("raise parallelism.context_parallel_degree (1 now), whose ranks share each sequence"));
  config.parallelism.context_parallel_degree = 8;
  CHECK_THAT(memory_advice(config, /*of_gpu=*/false), Contains("context_parallel_degree (8 now)"));
  config.parallelism.tensor_parallel_degree = 2;  // whose ranks divide the tokens between layers
  CHECK_THAT(memory_advice(config, /*of_gpu=*/false), !Contains("context_parallel_degree"));
  config.parallelism.tensor_parallel_degree = 1;
  config.parallelism.context_parallel_degree = 16;
  CHECK_THAT(memory_advice(config, /*of_gpu=*/false), !Contains("context_parallel_degree"));
}

}  // namespace hyperion::config
