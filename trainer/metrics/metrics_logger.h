// MetricsLogger collects tokens and times of every step and, on logged steps, writes the step line,
// TensorBoard scalars and metrics.jsonl. It handles plain numbers only: no model, device or process group.
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "trainer/config/job_config.h"
#include "trainer/metrics/memory.h"
#include "trainer/metrics/metrics_jsonl.h"
#include "trainer/metrics/metrics_server.h"
#include "trainer/metrics/prometheus_figures.h"
#include "trainer/metrics/tensorboard.h"

namespace hyperion::metrics {

// Facts of the run that [metrics] does not hold.
struct MeasuredRun {
  std::filesystem::path dump_folder = "outputs";
  std::time_t start_time = std::time(nullptr);  // names the TensorBoard folder; equal on all ranks
  std::string run_id{};                         // equal on all ranks; see run_folder.h
  int64_t start_step = 0;                       // last step already done: 0, or the resumed step
  bool starts_anew = false;                     // lines of earlier runs in the folder are not continued
  int64_t total_steps = 0;                      // training.steps
  int rank = 0;
  bool prints = true;  // this rank's log lines are shown: rank_prints() of base/log.h
  bool dry_run = false;
  int64_t batch_ranks = 1;             // that read different tokens
  int64_t non_data_parallel_size = 1;  // cp * tp * pp: ranks that share the same tokens

  double flops_per_token_square = 0;  // see flops.h
  double flops_per_token_causal = 0;
  double peak_flops = 0;      // FLOP/s of this rank's device, the base of MFU
  double tokenizer_rate = 0;  // tokens/s that a node can tokenise; 0: not measured
  // The sequences of the steps after `from`, up to `to`; empty: all steps have equally many.
  std::function<double(int64_t from, int64_t to)> sequences_of_steps{};
};

// Returns whether this rank writes metrics to files: rank 0, or every rank with save_for_all_ranks.
inline bool rank_writes_metrics(const config::JobConfig::Metrics& options, int rank) {
  return options.save_for_all_ranks || rank == 0;
}

// Sources of measured numbers. An empty one gives zero; an empty clock is the steady clock.
struct MetricsSources {
  std::function<DeviceMemory()> take_peak_memory;  // peaks since the last call
  std::function<double()> clock;                   // seconds, for tests
};

struct StepMetrics {
  int64_t step = 0;
  double global_avg_loss = 0;  // loss sum over all ranks / valid tokens over all ranks
  double global_max_loss = 0;  // largest rank's average
  double grad_norm = 0;        // before clipping
  double lr = 0;               // learning rate of this step
  int64_t n_tokens_seen = 0;   // over all ranks
  MetricList extra{};          // additional tags for TensorBoard and metrics.jsonl
};

// Begins the tag of a source's validation loss; its name follows.
inline constexpr const char* kValidationLossOfSource = "validation_metrics/loss/";

class MetricsLogger {
 public:
  // Creates <dump>/<save_tb_folder>/YYYYMMDD-HHMM[/rank_N] and <dump>/metrics.jsonl; if all ranks save, ranks
  // above 0 use <dump>/rank_N/metrics.jsonl. Throws Error(kUsage) if a file cannot be created.
  MetricsLogger(const config::JobConfig::Metrics& options, MeasuredRun run, MetricsSources sources);

  // Answers Prometheus at `listener` from now on, also while the job ends.
  void serve_prometheus(Descriptor listener, PrometheusFacts facts);

  // Call it for every fetched (micro)batch with its tokens on this rank and the seconds of the fetch.
  void add_batch(int64_t tokens, double data_loading_seconds);

  // Call it after every step, before log(), with the tokens that the run was trained on so far.
  void step_done(int64_t step, int64_t tokens_seen);

  // Returns whether log() is to be called for `step`: for step 1 and every multiple of log_freq.
  bool should_log(int64_t step) const;
  void log(const StepMetrics& metrics);

  // Call them around a validation run, so that its tokens, time and memory peak do not count as training's.
  void begin_validation();
  // `losses`: those of the sources by their tags, which end the line too.
  void log_validation(int64_t step, double loss, const MetricList& losses = {});

  // Writes an event after `step` to metrics.jsonl and for Prometheus; docs/metrics.md lists the events.
  // Callable from any thread.
  void event(int64_t step, const std::string& name, JsonFields fields);

  // Writes the resolved configuration for TensorBoard's Text tab.
  void log_config(const std::string& toml);

 private:
  // Sums since the last logged step, or since begin_validation().
  struct Window {
    double start = 0;  // clock
    int64_t tokens = 0;
    int64_t batches = 0;
    double data_seconds = 0;
    int64_t steps_done = 0;  // the last step before the window
    DeviceMemory memory;     // peaks taken so far
  };

  bool writes_files() const { return rank_writes_metrics(options_, run_.rank); }
  void start_window(int64_t steps_done);
  double tokens_per_second(double seconds) const;
  double seconds_left(int64_t step, double step_seconds);
  DeviceMemory take_memory();
  void warn_about_memory(const DeviceMemory& memory);
  void write(int64_t step, const MetricList& metrics);

  config::JobConfig::Metrics options_;
  MeasuredRun run_;
  MetricsSources sources_;
  bool color_;
  std::optional<EventWriter> tensorboard_;
  std::optional<JsonlWriter> jsonl_;
  std::optional<PrometheusFigures> prometheus_;
  std::optional<MetricsServer> server_;  // reads prometheus_
  Window window_;
  std::optional<Window> paused_;                            // training's window while a validation runs
  std::optional<std::pair<int64_t, double>> first_logged_;  // step and time
  int64_t warned_retries_ = 0;
  int64_t warned_ooms_ = 0;
};

}  // namespace hyperion::metrics
