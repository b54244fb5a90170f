// The lower bound of `hyperion check` is at most the memory that `hyperion plan` predicts.
#include <filesystem>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "app/plan/mesh_plan.h"
#include "parallel/mesh.h"
#include "trainer/build/peak_memory.h"
#include "trainer/plan/memory_needs.h"
#include "trainer/preflight.h"
#include "trainer/runtime/runtime.h"

namespace hyperion::app {
namespace {

struct Job {
  const char* file;
  int64_t gpus;
  std::vector<std::string> settings{};
};

std::string degree(const char* name, int64_t value) {
  return std::string("parallelism.") + name + "_degree=" + std::to_string(value);
}

std::string schedule(const char* name) {
  return std::string("parallelism.pipeline_parallel_schedule=") + name;
}

// Every family, and every kind of parallelism.
std::vector<Job> jobs() {
  const char* const eight = "configs/llama3_8b.toml";
  const char* const seventy = "configs/llama3_70b.toml";
  const char* const experts = "configs/qwen3_30b_a3b.toml";
  const std::string batch = "training.local_batch_size=16", pipeline = degree("pipeline_parallel", 8);
  return {{eight, 1},
          {eight, 8},
          {eight, 8, {"training.local_batch_size=4"}},
          {eight, 8, {"training.global_batch_size=32"}},
          {eight, 8, {"parallelism.fsdp_reshard_after_forward=never"}},
          {eight, 8, {"training.global_batch_size=32", "parallelism.fsdp_reduce_gradients=once_per_step"}},
          {eight, 64, {degree("data_parallel_replicate", 8)}},
          {eight, 1024},
          {eight, 16, {degree("tensor_parallel", 2)}},
          {eight, 16, {degree("tensor_parallel", 8), "parallelism.enable_async_tensor_parallel=true"}},
          {eight, 8, {degree("context_parallel", 4)}},
          {"configs/llama3_8b_128k.toml", 64},
          {seventy, 64, {degree("tensor_parallel", 1)}},
          {seventy, 16384},
          {seventy, 512, {batch, pipeline, schedule("1F1B")}},
          {seventy, 512, {batch, pipeline, schedule("Interleaved1F1B")}},
          {seventy,
           512,
           {batch, pipeline, schedule("Interleaved1F1B"), "parallelism.fsdp_reshard_after_forward=always"}},
          {seventy, 512, {batch, pipeline, schedule("ZBVZeroBubble")}},
          {seventy, 512, {batch, pipeline, schedule("InterleavedZeroBubble")}},
          {"configs/llama3_405b_512gpus.toml", 512},
          {"configs/qwen3_32b.toml", 64},
          {experts, 8},
          {experts, 64},
          {experts, 64, {degree("expert_parallel", 1)}},
          {experts, 64, {degree("tensor_parallel", 2), degree("expert_tensor_parallel", 2)}},
          {"configs/deepseek_v3_16b.toml", 8},
          {"configs/deepseek_v3_16b.toml", 512},
          {"configs/gpt_oss_20b.toml", 8},
          {"configs/gpt_oss_20b.toml",
           8,
           {degree("context_parallel", 8), degree("expert_parallel", 8), "training.seq_len=131072",
            "training.local_batch_size=1"}},
          {"configs/gpt_oss_120b.toml", 64}};
}

}  // namespace

TEST_CASE("The least memory of a rank is at most what is predicted of the fullest one") {
  const trainer::CardRange card = trainer::Cards(HYPERION_SOURCE_DIR "/scripts/cards.json").find("h100");
  for (const Job& job : jobs())
    for (const char* mode : {"none", "selective", "elementwise", "full"}) {
      std::vector<config::Override> overrides = {
          {.name = "activation_checkpoint.mode", .value = mode},
          {.name = "activation_checkpoint.selective_ac_option", .value = "op"}};
      for (const std::string& setting : job.settings) {
        const size_t equals = setting.find('=');
        overrides.push_back({.name = setting.substr(0, equals), .value = setting.substr(equals + 1)});
      }
      CAPTURE(job.file, job.gpus, job.settings, mode);
      config::JobConfig config =
          config::load_config(std::filesystem::path(HYPERION_SOURCE_DIR) / job.file, overrides).config;
      const models::ModelArgs model = trainer::job_model(config);
      const parallel::Mesh mesh(trainer::mesh_config(config), static_cast<int>(job.gpus));
      const int64_t batches =
          config::microbatches_of(config.training, mesh.degree(parallel::MeshDim::kBatch));
      const auto pipeline = trainer::plan_pipeline(config, model, batches);
      const trainer::JobSize least =
          trainer::largest_replayed_size(config, model, mesh, pipeline, /*on_gpu=*/true);
      const Hardware hardware{.gpus = job.gpus, .card = card, .cluster = trainer::Cluster()};
      const std::optional<MeshPlan> plan =
          Planner(model, hardware, /*refuses=*/true).plan(config, /*ends=*/false);
      REQUIRE(plan.has_value());
      const double needed = trainer::total(trainer::memory_needs(config, least, /*on_gpu=*/true).device);
      CHECK(needed <= plan->memory.total());
      CHECK(needed > 0.6 * plan->memory.total());
    }
}

}  // namespace hyperion::app
