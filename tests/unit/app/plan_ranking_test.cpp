// `hyperion plan` must put the runs of a publication into the publication's order. docs/notes/published.md
// has the speeds by row, with what differs between these programs and ours.
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "app/plan/mesh_search.h"
#include "trainer/preflight.h"

namespace hyperion::app {
namespace {

using Settings = std::vector<std::string>;

struct Run {
  const char* row;
  const char* card;
  int64_t gpus;
  Settings settings;
  double published;  // tokens per second of a GPU
};

// Runs that one publication compares; each has these settings before its own.
struct Comparison {
  Settings settings;
  std::vector<Run> runs;
};

Settings both(Settings first, const Settings& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

const Settings kFloat8 = {"model.converters=quantize.linear.float8",
                          "quantize.linear.float8.enable_fsdp_float8_all_gather=true",
                          "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp=true",
                          "quantize.linear.float8.filter_fqns=output"};
const Settings kMx = {"model.converters=quantize.linear.mx,quantize.grouped_mm.mx",
                      "quantize.linear.mx.filter_fqns=output,router.gate",
                      "quantize.grouped_mm.mx.fqns=experts"};

Settings long_sequence(int64_t length, int context) {
  return {"training.seq_len=" + std::to_string(length), "model.args.max_seq_len=" + std::to_string(length),
          "parallelism.context_parallel_degree=" + std::to_string(context)};
}

const std::vector<Comparison> kComparisons = {
    // torchtitan: bf16 against FP8, on 8 and on 128 GPUs.
    {{"model.name=llama3", "model.flavor=8B", "training.seq_len=8192", "training.local_batch_size=2",
      "activation_checkpoint.mode=selective", "activation_checkpoint.selective_ac_option=op"},
     {{"30", "h100-500w", 8, {}, 6667},
      {"31", "h100-500w", 8, kFloat8, 8532},
      {"32", "h100-500w", 128, {}, 6514},
      {"32, FP8", "h100-500w", 128, kFloat8, 8380},
      {"35", "h200", 32, kFloat8, 10938}}},
    // torchtitan: twice as long sequences on twice as many ranks.
    {both({"model.name=llama3", "model.flavor=8B", "training.local_batch_size=1",
           "activation_checkpoint.mode=full"},
          kFloat8),
     {{"37, CP 1", "h100-500w", 8, long_sequence(32768, 1), 3890},
      {"37, CP 2", "h100-500w", 8, long_sequence(65536, 2), 2540},
      {"37, CP 4", "h100-500w", 8, long_sequence(131072, 4), 1071},
      {"37, CP 8", "h100-500w", 8, long_sequence(262144, 8), 548}}},
    // torchtitan: two schedules.
    {both({"model.name=llama3", "model.flavor=405B", "training.seq_len=8192", "training.local_batch_size=32",
           "activation_checkpoint.mode=full", "parallelism.tensor_parallel_degree=8",
           "parallelism.pipeline_parallel_degree=8", "parallelism.enable_async_tensor_parallel=true"},
          kFloat8),
     {{"34", "h100-500w", 512, {"parallelism.pipeline_parallel_schedule=1F1B"}, 100},
      {"34, interleaved",
       "h100-500w",
       512,
       {"parallelism.pipeline_parallel_schedule=Interleaved1F1B"},
       128}}},
    // Megatron-Bridge: one and four sequences of a microbatch.
    {both({"model.name=qwen3", "model.flavor=30B-A3B", "training.seq_len=4096",
           "training.global_batch_size=512", "activation_checkpoint.mode=none",
           "parallelism.expert_parallel_degree=8", "parallelism.fsdp_reshard_after_forward=never",
           "parallelism.fsdp_reduce_gradients=once_per_step"},
          kMx),
     {{"16", "b200", 8, {"training.local_batch_size=1"}, 9691},
      {"16, 4 sequences", "b200", 8, {"training.local_batch_size=4"}, 26695}}},
    // Automodel: 1,024 and 256 GPUs. It empties the pipeline after each 8 microbatches, so a step has 8 here.
    {{"model.name=deepseek_v3", "model.flavor=671B", "training.seq_len=4096", "training.local_batch_size=8",
      "activation_checkpoint.mode=full", "parallelism.pipeline_parallel_degree=4",
      "parallelism.pipeline_parallel_schedule=Interleaved1F1B",
      "parallelism.pipeline_parallel_layers_per_stage=2", "parallelism.expert_parallel_degree=64"},
     {{"22", "h100", 1024, {}, 865}, {"23", "h100", 256, {}, 1002}}},
};

double predicted_speed(const Run& run, const Settings& shared) {
  std::vector<config::Override> overrides;
  for (const std::string& setting : both(shared, run.settings)) {
    const size_t equals = setting.find('=');
    overrides.push_back({.name = setting.substr(0, equals), .value = setting.substr(equals + 1)});
  }
  const config::ResolvedConfig resolved = config::parse_config("", "a published run", overrides);
  const models::ModelArgs model = trainer::job_model(resolved.config);
  Hardware hardware{.gpus = run.gpus,
                    .card = trainer::Cards(HYPERION_SOURCE_DIR "/scripts/cards.json").find(run.card),
                    .cluster = {}};
  hardware.card.memory_bytes = 1e12;  // the order must not depend on what fits
  const SearchResult result =
      search_meshes(resolved, model, hardware, {.configured = true}, [](size_t, size_t) {});
  REQUIRE(result.plans.size() == 1);
  return result.plans[0].speed(result.plans[0].middle) / static_cast<double>(run.gpus);
}

}  // namespace

TEST_CASE("Plans are in the order of published runs where those differ by a tenth") {
  for (const Comparison& comparison : kComparisons) {
    std::vector<double> predicted;
    for (const Run& run : comparison.runs) predicted.push_back(predicted_speed(run, comparison.settings));
    for (size_t slow = 0; slow < predicted.size(); ++slow)
      for (size_t fast = 0; fast < predicted.size(); ++fast) {
        if (comparison.runs[fast].published < 1.1 * comparison.runs[slow].published) continue;
        CAPTURE(comparison.runs[slow].row, comparison.runs[fast].row);
        CHECK(predicted[fast] > predicted[slow]);
      }
  }
}

}  // namespace hyperion::app
