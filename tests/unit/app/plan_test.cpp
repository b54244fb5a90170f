// `hyperion plan`: predictions against what the simulated GPU counted, and the search.
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "app/plan/mesh_plan.h"
#include "app/plan/mesh_search.h"
#include "app/plan/plan_text.h"
#include "models/args/packed_row.h"
#include "trainer/config/input_path.h"
#include "trainer/preflight.h"

namespace hyperion::app {
namespace {

using Catch::WithinRel;

std::filesystem::path cards_file() {
  return HYPERION_SOURCE_DIR "/scripts/cards.json";
}

Hardware hardware_of(int64_t gpus) {
  return {.gpus = gpus, .card = trainer::Cards(cards_file()).find("h100"), .cluster = trainer::Cluster()};
}

config::ResolvedConfig load(const std::string& file, const std::vector<std::string>& settings) {
  std::vector<config::Override> overrides;
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    overrides.push_back({.name = setting.substr(0, equals), .value = setting.substr(equals + 1)});
  }
  return config::load_config(std::filesystem::path(HYPERION_SOURCE_DIR) / file, overrides);
}

SearchResult plan_configured(const std::string& file, int64_t gpus,
                             const std::vector<std::string>& settings) {
  config::ResolvedConfig resolved = load(file, settings);
  const models::ModelArgs model = trainer::job_model(resolved.config);
  return search_meshes(resolved, model, hardware_of(gpus), {.configured = true}, [](size_t, size_t) {});
}

// Counted is a dry run on the simulated GPU (docs/notes/plan.md), priced in the middle of the constants.
struct Counted {
  std::string file;
  int64_t gpus;
  std::vector<std::string> settings;
  double tokens_per_second;  // of a GPU
  double gib;                // reserved
  double time_tolerance = 0.01, memory_tolerance = 0.03;
};

}  // namespace

TEST_CASE("A plan agrees with what the simulated GPU counts") {
  const std::string eight = "configs/llama3_8b.toml";
  const auto mode = [](const char* name) { return std::string("activation_checkpoint.mode=") + name; };
  const std::string op = "activation_checkpoint.selective_ac_option=op";
  const auto pipeline = [&](const char* name, const char* schedule) {
    return std::vector<std::string>{mode(name), "training.local_batch_size=16",
                                    "parallelism.pipeline_parallel_degree=8",
                                    std::string("parallelism.pipeline_parallel_schedule=") + schedule};
  };
  std::vector<std::string> always = pipeline("none", "Interleaved1F1B");
  always.emplace_back("parallelism.fsdp_reshard_after_forward=always");
  const std::vector<Counted> table = {
      {eight, 8, {mode("none")}, 10514, 51.74},
      {eight, 8, {mode("selective"), op}, 9582, 32.77},
      {eight, 8, {mode("full")}, 8605, 22.82},
      {eight, 8, {mode("elementwise")}, 10292, 40.94},
      {eight,
       8,
       {mode("none"), "model.converters=quantize.linear.float8",
        "quantize.linear.float8.enable_fsdp_float8_all_gather=true",
        "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp=true"},
       12614,
       46.63},
      {eight, 8, {mode("none"), "training.global_batch_size=32"}, 4 * 2684, 55.98},
      {eight, 16, {mode("none"), "parallelism.data_parallel_replicate_degree=2"}, 10308, 51.74},
      {eight, 16, {mode("none"), "parallelism.tensor_parallel_degree=2"}, 9435, 28.54},
      {eight, 16, {mode("selective"), op, "parallelism.tensor_parallel_degree=2"}, 8676, 17.62},
      {eight,
       16,
       {mode("full"), "parallelism.tensor_parallel_degree=8",
        "parallelism.enable_async_tensor_parallel=true"},
       5409,
       9.23},
      {eight, 8, {mode("none"), "parallelism.context_parallel_degree=4"}, 8182, 25.68},
      {"configs/llama3_8b_128k.toml", 64, {mode("full")}, 2786, 16.58},
      {"configs/llama3_70b.toml", 256, {mode("full")}, 802, 21.19},
      // The simulated rank was the first; the plan is of the slowest, which has the head.
      {"configs/llama3_405b_512gpus.toml", 512, {mode("full")}, 157, 49.31, 0.07},
      // Memory of the last rank, which keeps the most; time of the first, but InterleavedZeroBubble's of the
      // last.
      {"configs/llama3_70b.toml", 512, pipeline("none", "ZBVZeroBubble"), 958, 62.52},
      {"configs/llama3_70b.toml", 512, pipeline("full", "ZBVZeroBubble"), 734, 60.16},
      {"configs/llama3_70b.toml", 512, pipeline("none", "InterleavedZeroBubble"), 972, 55.93, 0.03},
      {"configs/llama3_70b.toml", 512, always, 537, 59.79},
      {eight, 8, {mode("selective"), op, "parallelism.fsdp_reshard_after_forward=never"}, 9645, 46.37},
      {"configs/qwen3_30b_a3b.toml", 64, {mode("full")}, 9038, 11.32},
      {"configs/qwen3_30b_a3b.toml", 64, {mode("none")}, 10589, 63.89},
      {"configs/deepseek_v3_16b.toml", 64, {mode("full")}, 16925, 9.71},
  };
  for (const Counted& row : table) {
    CAPTURE(row.file, row.gpus, row.settings);
    const SearchResult result = plan_configured(row.file, row.gpus, row.settings);
    REQUIRE(result.plans.size() == 1);
    const MeshPlan& plan = result.plans[0];
    CHECK_THAT(plan.speed(plan.middle) / static_cast<double>(row.gpus),
               WithinRel(row.tokens_per_second, row.time_tolerance));
    CHECK_THAT(plan.memory.total() / (1 << 30), WithinRel(row.gib, row.memory_tolerance));
    CHECK(plan.slow.total() > plan.middle.total());
    CHECK(plan.fast.total() < plan.middle.total());
  }
}

TEST_CASE("Predicted memory agrees with what the simulated GPU reserves") {
  struct Reserved {
    std::string file;
    int64_t gpus;
    std::vector<std::string> settings;
    double gib;
  };
  const std::string eight = "configs/llama3_8b.toml", experts = "configs/qwen3_30b_a3b.toml",
                    seventy = "configs/llama3_70b.toml", op = "activation_checkpoint.selective_ac_option=op",
                    selective = "activation_checkpoint.mode=selective",
                    none = "activation_checkpoint.mode=none", full = "activation_checkpoint.mode=full",
                    two = "training.local_batch_size=2", one = "training.local_batch_size=1";
  const std::vector<Reserved> table = {
      {eight, 1024, {selective, op, two, "parallelism.data_parallel_replicate_degree=64"}, 42.54},
      {eight,
       16,
       {none, "parallelism.context_parallel_degree=2", "parallelism.context_parallel_rotate_method=alltoall"},
       28.05},
      {eight, 16, {full, "parallelism.context_parallel_degree=8", "training.seq_len=65536"}, 16.42},
      {experts,
       32,
       {selective, op, "parallelism.tensor_parallel_degree=2", "parallelism.expert_parallel_degree=4",
        "parallelism.expert_tensor_parallel_degree=2"},
       43.60},
      {"configs/deepseek_v3_16b.toml", 8, {none, one}, 43.90},
      {"configs/deepseek_v3_16b.toml", 8, {selective, op, two}, 44.18},
      {"configs/gpt_oss_120b.toml", 64, {full}, 37.51},
      {"configs/gpt_oss_20b.toml",
       8,
       {full, one, "parallelism.context_parallel_degree=8", "parallelism.expert_parallel_degree=8",
        "training.seq_len=131072"},
       49.73},
      {seventy,
       256,
       {full, "training.local_batch_size=8", "parallelism.pipeline_parallel_degree=4",
        "parallelism.pipeline_parallel_schedule=Interleaved1F1B"},
       19.43},
  };
  for (const Reserved& row : table) {
    CAPTURE(row.file, row.gpus, row.settings);
    const SearchResult result = plan_configured(row.file, row.gpus, row.settings);
    REQUIRE(result.plans.size() == 1);
    CHECK_THAT(result.plans[0].memory.total() / (1 << 30), WithinRel(row.gib, 0.03));
  }
}

TEST_CASE("A search orders meshes by speed and shows each once") {
  const config::ResolvedConfig resolved = load("configs/llama3_70b.toml", {});
  const models::ModelArgs model = trainer::job_model(resolved.config);
  const SearchResult result =
      search_meshes(resolved, model, hardware_of(128), {.global_batch = 128}, [](size_t, size_t) {});
  REQUIRE(result.plans.size() == 10);
  CHECK(result.fitting <= result.tried);
  std::set<std::string> meshes;
  for (size_t i = 0; i < result.plans.size(); ++i) {
    const MeshPlan& plan = result.plans[i];
    CHECK(plan.memory.total() <= usable_memory(hardware_of(128).card));
    CHECK(plan.global_batch == 128);
    meshes.insert(describe_mesh(plan));
    if (i > 0) CHECK(plan.middle.total() >= result.plans[i - 1].middle.total());
    const auto& degrees = plan.config.parallelism;
    CHECK(degrees.tensor_parallel_degree * degrees.pipeline_parallel_degree *
              degrees.context_parallel_degree * degrees.data_parallel_replicate_degree *
              degrees.data_parallel_shard_degree ==
          128);
  }
  CHECK(meshes.size() == 10);
}

TEST_CASE("No other choice of what saves memory makes a plan of a search faster") {
  const config::ResolvedConfig resolved = load("configs/qwen3_30b_a3b.toml", {});
  const models::ModelArgs model = trainer::job_model(resolved.config);
  const Hardware hardware = hardware_of(16);
  const double limit = usable_memory(hardware.card);
  const SearchResult result =
      search_meshes(resolved, model, hardware, {.global_batch = 64}, [](size_t, size_t) {});
  Planner planner(model, hardware);
  // Rows of one slice of tokens travel while the experts multiply those of another.
  CHECK(std::ranges::any_of(
      result.plans, [](const MeshPlan& plan) { return plan.config.parallelism.expert_parallel_slices > 1; }));
  for (const MeshPlan& plan : result.plans)
    for (const auto mode : {config::RecomputeMode::kNone, config::RecomputeMode::kElementwise,
                            config::RecomputeMode::kSelective, config::RecomputeMode::kFull})
      for (const auto reshard : {config::ReshardAfterForward::kDefault, config::ReshardAfterForward::kAlways,
                                 config::ReshardAfterForward::kNever}) {
        config::JobConfig config = plan.config;
        config.activation_checkpoint.mode = mode;
        config.activation_checkpoint.selective_ac_option = "op";
        config.parallelism.fsdp_reshard_after_forward = reshard;
        const std::optional<MeshPlan> other = planner.plan(config, /*ends=*/false);
        REQUIRE(other.has_value());
        if (other->memory.total() > limit) continue;
        CAPTURE(describe_mesh(plan), static_cast<int>(mode), static_cast<int>(reshard));
        CHECK(other->middle.total() >= plan.middle.total() * (1 - 1e-9));
      }
}

TEST_CASE("A model that fits on no mesh names the least that it needs") {
  const config::ResolvedConfig resolved = load("configs/llama3_405b.toml", {});
  const models::ModelArgs model = trainer::job_model(resolved.config);
  const SearchResult result =
      search_meshes(resolved, model, hardware_of(8), {.global_batch = 8}, [](size_t, size_t) {});
  CHECK(result.plans.empty());
  REQUIRE(result.smallest.has_value());
  CHECK(result.smallest->memory.total() > usable_memory(hardware_of(8).card));
}

TEST_CASE("A token that travels once to each node takes less of the network") {
  const std::vector<std::string> settings = {"model.name=deepseek_v3", "model.flavor=671B",
                                             "parallelism.expert_parallel_degree=64",
                                             "activation_checkpoint.mode=full"};
  std::vector<std::string> once = settings;
  once.emplace_back("parallelism.expert_parallel_once_per_node=true");
  const SearchResult apart = plan_configured("configs/deepseek_v3_16b.toml", 1024, settings),
                     together = plan_configured("configs/deepseek_v3_16b.toml", 1024, once);
  REQUIRE(apart.plans.size() == 1);
  REQUIRE(together.plans.size() == 1);
  // Seven of 8 rows to other ranks leave the node. 8 experts in 4 of 8 groups are on 4 nodes, of which 7 of 8
  // are others (docs/experts.md); then 7 rows travel over the links of the node. Tokens travel with their
  // weights and choices, three times with a recomputation, and sums back twice and packed, not in six
  // exchanges alike.
  const trainer::Card card = hardware_of(8).card.middle;
  const double network = card.network_share * trainer::Cluster().network;
  const auto dispatch = [](const SearchResult& result) {
    return result.plans[0].middle.of(trainer::Family::kDispatch);
  };
  const double row = 7168 * 2, sum = static_cast<double>(models::bytes_of_packed_row(7168)), numbers = 8 * 4;
  const double between = 3.5 * (3 * row + 2 * sum + 4 * numbers) / (6 * row);
  CHECK_THAT(dispatch(together) / dispatch(apart),
             WithinRel((between / network + 7 / card.link) / (7 / network), 1e-3));
}

TEST_CASE("A change that check would refuse is not proposed") {
  const config::ResolvedConfig resolved =
      load("configs/qwen3_30b_a3b.toml",
           {"model.converters=quantize.grouped_mm.mx", "quantize.grouped_mm.mx.fqns=experts"});
  const models::ModelArgs model = trainer::job_model(resolved.config);
  const Hardware hardware = hardware_of(8);
  const SearchResult result =
      search_meshes(resolved, model, hardware, {.configured = true}, [](size_t, size_t) {});
  REQUIRE(result.plans.size() == 1);
  const std::string text = explain_plan(result, 0, {}, hardware, model, resolved);
  CHECK_THAT(text, Catch::Contains("FP8 (model.converters)                      cannot be run"));
}

TEST_CASE("A step that the host cannot launch as fast as the GPU computes is said to be host-bound") {
  const auto explained = [](const std::string& file, const std::vector<std::string>& settings) {
    const config::ResolvedConfig resolved = load(file, settings);
    const models::ModelArgs model = trainer::job_model(resolved.config);
    const SearchResult result =
        search_meshes(resolved, model, hardware_of(8), {.configured = true}, [](size_t, size_t) {});
    REQUIRE(result.plans.size() == 1);
    return std::pair(result.plans[0].kernels, explain_plan(result, 0, {}, hardware_of(8), model, resolved));
  };
  const auto [few, small] = explained("configs/debug_model.toml", {});
  CHECK_THAT(small, Catch::Contains("us: host-bound"));
  const auto [kernels, large] = explained("configs/llama3_8b.toml", {"activation_checkpoint.mode=none"});
  CHECK_THAT(large, !Catch::Contains("host-bound"));
  CHECK_THAT(kernels, WithinRel(966, 0.05));  // without gathers and reductions (docs/notes/simulated_step.md)
}

TEST_CASE("Cards of GPUs are read strictly") {
  const trainer::Cards cards(cards_file());
  CHECK(cards.find("h100").name == "H100 SXM, 700 W");
  CHECK(cards.find("h200").middle.memory > cards.find("h100").middle.memory);
  CHECK(cards.find("h100-500w").middle.rate(trainer::Rate::kBf16) <
        cards.find("h100").middle.rate(trainer::Rate::kBf16));
  const trainer::CardRange card = cards.find("h100");
  CHECK(card.slow.launch > card.fast.launch);
  CHECK(card.slow.rate(trainer::Rate::kBf16) < card.fast.rate(trainer::Rate::kBf16));
  CHECK_THROWS_WITH(cards.find("v100"), Catch::Contains("there are a100, b200, h100"));
}

TEST_CASE("Checkpoints are due by Young and Daly") {
  const SaveInterval few = save_interval(100e9, 8, 8), many = save_interval(100e9, 16384, 8);
  CHECK(few.seconds > many.seconds);
  CHECK_THAT(many.between_failures, WithinRel(54.0 * 86400 / 419, 1e-9));
}

}  // namespace hyperion::app
