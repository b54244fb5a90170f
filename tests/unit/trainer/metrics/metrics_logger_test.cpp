#include "trainer/metrics/metrics_logger.h"

#include <sstream>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "event_reader.h"
#include "tests/support/temporary_folder.h"

namespace hyperion::metrics {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// A logger whose clock and memory the test sets.
struct Bench {
  test::TemporaryFolder folder;
  double now = 100;
  DeviceMemory memory;

  config::JobConfig::Metrics options{.enable_tensorboard = true};
  MeasuredRun run{.dump_folder = folder.path(),
                  .run_id = "20260220-120000",
                  .total_steps = 110,
                  .flops_per_token_square = 2e9,
                  .flops_per_token_causal = 1e9,
                  .peak_flops = 4e12};
  MetricsSources sources() {
    return {.take_peak_memory = [this] { return std::exchange(memory, DeviceMemory{}); },
            .clock = [this] { return now; }};
  }
  std::vector<nlohmann::json> lines() const {
    std::vector<nlohmann::json> out;
    std::istringstream text(read_file(folder.path() / "metrics.jsonl"));
    for (std::string line; std::getline(text, line);) out.push_back(nlohmann::json::parse(line));
    return out;
  }
};

StepMetrics metrics_of(int64_t step) {
  return {step, 4.0, 5.0, 0.5, 1e-3, 1000 * step, {}};
}

}  // namespace

TEST_CASE("Step 1 and multiples of log_freq are logged") {
  Bench bench;
  const MetricsLogger logger(bench.options, bench.run, bench.sources());
  std::vector<int64_t> logged;
  for (int64_t step = 1; step <= 30; ++step)
    if (logger.should_log(step)) logged.push_back(step);
  CHECK(logged == std::vector<int64_t>{1, 10, 20, 30});
}

TEST_CASE("Rates count tokens and seconds since the last logged step") {
  Bench bench;
  bench.run.non_data_parallel_size = 2;
  bench.run.batch_ranks = 3;
  bench.run.tokenizer_rate = 5e6;
  MetricsLogger logger(bench.options, bench.run, bench.sources());

  bench.now += 2;
  bench.memory = {2 * kGiB, 3 * kGiB, 20, 30, 0, 0};
  logger.add_batch(4000, 0.5);
  logger.log(metrics_of(1));
  for (int step = 2; step <= 10; ++step) {
    bench.now += 1;
    logger.add_batch(500, 0.1);
    logger.add_batch(500, 0.2);
  }
  logger.log(metrics_of(10));

  const auto lines = bench.lines();
  REQUIRE(lines.size() == 2);
  CHECK(lines[0]["throughput(tps)"] == 1000.0);  // 4000 tokens / (2 s * 2 ranks that share them)
  CHECK(lines[0]["data/tokens_per_second_needed"] == 6000.0);  // of all ranks
  CHECK(lines[0]["data/tokens_per_second_available"] == 5e6);
  CHECK(lines[0]["tflops"] == 2.0);
  CHECK(lines[0]["mfu(%)"] == 50.0);
  CHECK(lines[0]["mfu_causal(%)"] == 25.0);
  CHECK(lines[0]["time_metrics/end_to_end(s)"] == 2.0);  // one step passed, not log_freq
  CHECK(lines[0]["time_metrics/data_loading(s)"] == 0.5);
  CHECK(lines[0]["time_metrics/data_loading(%)"] == 25.0);
  CHECK(lines[0]["memory/max_active(GiB)"] == 2.0);
  CHECK(lines[0]["memory/max_reserved(%)"] == 30.0);
  CHECK(lines[0]["lr"] == 1e-3);
  CHECK(lines[0]["n_tokens_seen"] == 1000.0);
  CHECK(lines[1]["throughput(tps)"] == 500.0);
  CHECK(lines[1]["time_metrics/end_to_end(s)"] == 1.0);
  CHECK(lines[1]["time_metrics/data_loading(s)"].get<double>() == Approx(0.15));
  CHECK(lines[1]["memory/max_reserved(GiB)"] == 0.0);
}

TEST_CASE("The time that is left counts validations and not the slow first step") {
  Bench bench;
  MetricsLogger logger(bench.options, bench.run, bench.sources());
  bench.now += 30;
  logger.log(metrics_of(1));
  bench.now += 10;
  logger.begin_validation();
  bench.now += 8;
  logger.log_validation(10, 3.5);
  logger.log(metrics_of(10));
  const auto lines = bench.lines();
  CHECK(lines[0]["time_metrics/eta(s)"] == 30.0 * 109);
  CHECK(lines[2]["time_metrics/eta(s)"] == 2.0 * 100);  // 18 s for 9 steps
}

TEST_CASE("Every line names the run and events keep their order among the metrics") {
  Bench bench;
  MetricsLogger logger(bench.options, bench.run, bench.sources());
  logger.event(0, "start", {{"ranks", int64_t{4}}});
  logger.log(metrics_of(1));
  logger.event(1, "checkpoint_staged", {{"stall_seconds", 0.5}});
  const auto lines = bench.lines();
  REQUIRE(lines.size() == 3);
  for (const auto& line : lines) {
    CHECK(line["run_id"] == "20260220-120000");
    CHECK(line["time"] > 1.7e9);
  }
  CHECK(lines[0]["event"] == "start");
  CHECK(lines[0]["ranks"] == 4);
  CHECK_FALSE(lines[1].contains("event"));
  CHECK(lines[2]["stall_seconds"] == 0.5);
}

TEST_CASE("A run that resumes divides by the steps it did itself") {
  Bench bench;
  bench.run.start_step = 17;
  MetricsLogger logger(bench.options, bench.run, bench.sources());
  bench.now += 6;
  logger.add_batch(10, 0);
  logger.log(metrics_of(20));
  CHECK(bench.lines()[0]["time_metrics/end_to_end(s)"] == 2.0);
}

TEST_CASE("A validation run has its own figures and leaves those of training alone") {
  Bench bench;
  MetricsLogger logger(bench.options, bench.run, bench.sources());
  bench.now += 1;
  logger.add_batch(1000, 0.25);
  bench.memory.max_reserved_bytes = 5 * kGiB;
  logger.begin_validation();
  bench.now += 10;
  logger.add_batch(70, 9);
  bench.memory.max_reserved_bytes = 2 * kGiB;
  logger.log_validation(1, 3.5);
  bench.now += 1;
  logger.add_batch(1000, 0.25);
  bench.memory.max_reserved_bytes = 4 * kGiB;
  logger.log(metrics_of(2));

  const auto lines = bench.lines();
  REQUIRE(lines.size() == 2);
  CHECK(lines[0]["validation_metrics/loss"] == 3.5);
  CHECK(lines[0]["validation_metrics/throughput(tps)"] == 7.0);
  CHECK(lines[0]["validation_metrics/memory/max_reserved(GiB)"] == 2.0);
  CHECK(lines[1]["throughput(tps)"] == 1000.0);
  CHECK(lines[1]["time_metrics/end_to_end(s)"] == 1.0);
  CHECK(lines[1]["time_metrics/data_loading(%)"] == 25.0);
  CHECK(lines[1]["memory/max_reserved(GiB)"] == 5.0);
  CHECK_THROWS_AS(logger.log_validation(3, 1.0), Error);
}

TEST_CASE("TensorBoard gets the tags of v0.2.2 in its folder") {
  Bench bench;
  bench.run.start_time = 1771588800;
  bench.options.enable_jsonl = false;
  {
    MetricsLogger logger(bench.options, bench.run, bench.sources());
    bench.now += 1;
    logger.add_batch(1, 0);
    auto metrics = metrics_of(1);
    metrics.extra = {{"mine", 7}};
    logger.log(metrics);
    logger.begin_validation();
    logger.log_validation(1, 3.5);
    logger.log_config("[training]\nsteps = 1");
  }
  const auto file = only_file(bench.folder.path());
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y%m%d-%H%M", std::localtime(&bench.run.start_time));
  CHECK(file.parent_path() == bench.folder.path() / "tb" / stamp);
  std::vector<std::string> tags;
  for (const auto& event : read_events(file))
    if (!event.tag.empty()) tags.push_back(event.tag);
  CHECK(tags == std::vector<std::string>{"loss_metrics/global_avg_loss",
                                         "loss_metrics/global_max_loss",
                                         "grad_norm",
                                         "throughput(tps)",
                                         "tflops",
                                         "mfu(%)",
                                         "mfu_causal(%)",
                                         "time_metrics/end_to_end(s)",
                                         "time_metrics/data_loading(s)",
                                         "time_metrics/data_loading(%)",
                                         "time_metrics/eta(s)",
                                         "memory/max_active(GiB)",
                                         "memory/max_active(%)",
                                         "memory/max_reserved(GiB)",
                                         "memory/max_reserved(%)",
                                         "memory/num_alloc_retries",
                                         "memory/num_ooms",
                                         "n_tokens_seen",
                                         "lr",
                                         "mine",
                                         "validation_metrics/loss",
                                         "validation_metrics/throughput(tps)",
                                         "validation_metrics/memory/max_active(GiB)",
                                         "validation_metrics/memory/max_active(%)",
                                         "validation_metrics/memory/max_reserved(GiB)",
                                         "validation_metrics/memory/max_reserved(%)",
                                         "config/text_summary"});
}

TEST_CASE("Only the metrics rank writes files unless all ranks save") {
  Bench bench;
  bench.run.rank = 3;
  bench.run.prints = false;
  {
    MetricsLogger silent(bench.options, bench.run, bench.sources());
    silent.log(metrics_of(1));
  }
  CHECK(std::filesystem::is_empty(bench.folder.path()));

  bench.options.save_for_all_ranks = true;
  { MetricsLogger(bench.options, bench.run, bench.sources()).log(metrics_of(1)); }
  CHECK(std::filesystem::exists(bench.folder.path() / "rank_3" / "metrics.jsonl"));
  CHECK(only_file(bench.folder.path() / "tb").parent_path().filename() == "rank_3");
}

}  // namespace hyperion::metrics
