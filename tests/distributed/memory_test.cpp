// What libtorch holds for a whole job, counted at its allocator: state, and nothing unsharded between steps.
#include <filesystem>
#include <fstream>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>

#include "tests/support/counting_allocator.h"
#include "tests/support/ranks.h"
#include "tests/support/reserved_port.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_training.h"
#include "trainer/build/peak_memory.h"
#include "trainer/config/load.h"
#include "trainer/preflight.h"
#include "trainer/runtime/runtime.h"
#include "trainer/trainer.h"

namespace hyperion::trainer {
namespace {

namespace fs = std::filesystem;

// The job of configs/debug_model.toml on a few documents of its own.
config::ResolvedConfig job(const fs::path& folder, const char* dtype) {
  std::ofstream data(folder / "data.jsonl");
  for (int i = 0; i < 200; ++i)
    data << fmt::format("{{\"text\": \"Document {} has a few words, and some are its own: {}.\"}}\n", i,
                        i * 7919);
  data.close();
  return config::load_config(HYPERION_SOURCE_DIR "/configs/debug_model.toml",
                             {{"model.hf_assets_path", HYPERION_SOURCE_DIR "/tests/assets/tokenizer"},
                              {"training.dataset", "jsonl"},
                              {"training.dataset_path", folder / "data.jsonl"},
                              {"training.mixed_precision_param", dtype},
                              {"training.local_batch_size", "2"},
                              {"training.seq_len", "64"},
                              {"training.steps", "3"},
                              {"metrics.save_for_all_ranks", "true"},
                              {"job.dump_folder", folder / "out"},
                              {"debug.seed", "1"}});
}

// metrics.jsonl of the run on this rank: the smallest peak over its steps, in bytes.
double smallest_peak(const fs::path& folder, int rank) {
  std::ifstream file(folder / "out" / (rank == 0 ? "" : fmt::format("rank_{}", rank)) / "metrics.jsonl");
  double smallest = INFINITY;
  for (std::string text; std::getline(file, text);) {
    const auto line = nlohmann::json::parse(text);
    if (!line.contains("event"))
      smallest = std::min(smallest, line.at("memory/max_active(GiB)").get<double>());
  }
  return smallest * 1024 * 1024 * 1024;
}

struct MeasuredRank {
  int64_t built, trained;  // bytes of libtorch before the first step and after the last
  ExitCode code;
  double peak;  // bytes of the process
};

}  // namespace

TEST_CASE(
    "a job holds 18 bytes per parameter in bf16 and 16 in fp32 divided over its shards and each rank reports "
    "its peak") {
  const auto [dtype, bytes] = GENERATE(std::pair{"bfloat16", 18.0}, std::pair{"float32", 16.0});
  constexpr int kRanks = 2;
  const test::TemporaryFolder folder;
  const fs::path path = folder.path();
  const config::ResolvedConfig resolved = job(path, dtype);
  const test::ReservedPort port;
  const auto train = [&](const parallel::Environment& environment) -> MeasuredRank {
    setenv("MASTER_PORT", std::to_string(port.number()).c_str(), 1);  // the trainer opens it itself
    setenv("HYPERION_DEVICE", "cpu", 1);
    // Leaked, for tensors that outlive everything here.
    auto* counter = new CountingAllocator(*c10::GetCPUAllocator());
    c10::SetCPUAllocator(counter, /*priority=*/255);
    auto* trainer = new Trainer(resolved, {"memory_test"});
    const int64_t built = counter->live();
    const ExitCode code = trainer->run();
    return {built, counter->live(), code, smallest_peak(path, environment.rank)};
  };
  const auto results = run_ranks(kRanks, train);
  const double expected = bytes * 6'163'712 / kRanks;
  for (const MeasuredRank& rank : results) {
    CAPTURE(dtype, rank.built / expected, rank.trained / expected);
    CHECK(rank.code == ExitCode::kOk);
    CHECK(rank.built == Approx(expected).epsilon(0.02));    // state is allocated at once
    CHECK(rank.trained == Approx(expected).epsilon(0.02));  // nothing gathered is left
    CHECK(rank.peak > expected);                            // of the process, so more than libtorch's
    CHECK(rank.peak < 4e9);
  }
}

namespace {

constexpr int kShards = 2;

struct PipelineCase {
  parallel::PipelineKind schedule;
  int ranks, rank;
  int64_t layers = 96;  // many, so that sums are large compared with one unit's weights and gradients
};

// The bytes that one rank allocates in a step, in addition to its state.
struct StepMemory {
  int64_t sums, total;  // replayed: unsharded gradients, and these with gathered weights and activations
  int64_t measured;
};

// Runs in a dry run, so other ranks need no process. Frees everything before it returns.
StepMemory measure_step(const PipelineCase& of, CountingAllocator& counter) {
  const TinyJob job{.layers = of.layers,
                    .mesh = {.pp = of.ranks, .dp_shard = kShards},
                    .checkpoint = models::ActivationCheckpoint::kFull,
                    .accumulation = TinyTraining::kGlobalBatch / kShards,
                    .schedule = of.schedule,
                    .reduce_once = true,
                    .fake = true};
  TinyTraining training(job, {.rank = of.rank * kShards, .world_size = of.ranks * kShards});
  training.step(0);
  const int64_t state = counter.live();
  counter.start_peak();
  training.step(1);
  const config::JobConfig& config = training.config();
  const models::ModelArgs model = job_model(config);
  const PipelinePlan plan = plan_pipeline(config, model, /*batches=*/1).value();
  const models::ModelDescription description = models::describe_model(model);
  const parallel::Mesh mesh(mesh_config(config), of.ranks * kShards);
  const PeakMemory peak =
      replayed_size({config, model, description, mesh, &plan}, static_cast<size_t>(of.rank), /*on_gpu=*/false)
          ->peak;
  return {static_cast<int64_t>(peak.unsharded), static_cast<int64_t>(peak.step() - peak.gradients),
          counter.peak() - state};
}

}  // namespace

TEST_CASE("a rank of a pipeline holds the estimated sums of gradients and little more") {
  using enum parallel::PipelineKind;
  static const PipelineCase cases[] = {
      {kGPipe, 2, 1},
      {k1F1B, 3, 0},
      {kLoopedBfs, 3, 2},
      {kInterleaved1F1B, 2, 0},
      {kInterleaved1F1B, 6, 2, 192},  // a stage's microbatches are one round: one stage has sums at a time
      {kInterleavedZeroBubble, 2, 1},
      {kZbvZeroBubble, 3, 0},
      {kDualPipeV, 3, 1}};
  const auto measured = run_ranks(1, [](const parallel::Environment&) {
    auto* counter = new CountingAllocator(*c10::GetCPUAllocator());  // leaked, as above
    c10::SetCPUAllocator(counter, /*priority=*/255);
    std::vector<StepMemory> steps;
    for (const PipelineCase& of : cases) steps.push_back(measure_step(of, *counter));
    return steps;
  });
  for (size_t i = 0; i < std::size(cases); ++i) {
    const StepMemory& step = measured.front().at(i);
    CAPTURE(text_of(cases[i].schedule), cases[i].ranks, cases[i].rank, step.sums, step.total, step.measured);
    CHECK(step.total <= step.measured);
    CHECK(static_cast<double>(step.total) >=
          0.5 * static_cast<double>(step.measured));  // without working memory
  }
}

}  // namespace hyperion::trainer
