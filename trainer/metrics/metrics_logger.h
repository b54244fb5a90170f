// What a user sees of training: collects tokens and times of every step and, on logged steps, writes the step
// line, TensorBoard scalars and metrics.jsonl. Knows plain numbers only: no model, device or process group.
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
#include "trainer/metrics/tensorboard.h"

namespace hyperion::metrics {

// Facts of the run that [metrics] does not hold.
struct MeasuredRun {
  std::filesystem::path dump_folder = "outputs";
  std::time_t start_time = std::time(nullptr);  // names the TensorBoard folder; give all ranks the same
  std::string run_id{};                         // give all ranks the same; see run_folder.h
  int64_t start_step = 0;                       // the last step already done: 0, or the one resumed from
  bool starts_anew = false;                     // what the folder has of other runs is not continued
  int64_t total_steps = 0;                      // training.steps
  int rank = 0;
  bool prints = true;  // whether this rank's log lines are shown: rank_prints() of base/log.h
  bool dry_run = false;
  int64_t non_data_parallel_size = 1;  // cp * tp * pp: ranks that share the same tokens

  double flops_per_token_square = 0;  // see flops.h
  double flops_per_token_causal = 0;
  double peak_flops = 0;  // FLOP/s of this rank's device, which MFU is a share of
};

// Whether this rank writes metrics to files: rank 0, or every one.
inline bool rank_writes_metrics(const config::JobConfig::Metrics& options, int rank) {
  return options.save_for_all_ranks || rank == 0;
}

// Where measured numbers come from; each one may be empty (zero then; the clock: the steady clock).
struct MetricsSources {
  std::function<DeviceMemory()> take_peak_memory;  // peaks since the last call
  std::function<double()> clock;                   // seconds, for tests
};

struct StepMetrics {
  int64_t step = 0;
  double global_avg_loss = 0;  // loss sum over all ranks / valid tokens over all ranks
  double global_max_loss = 0;  // largest rank's average
  double grad_norm = 0;        // before clipping
  double lr = 0;               // the value this step used
  int64_t n_tokens_seen = 0;   // over all ranks
  MetricList extra{};          // more tags for TensorBoard and metrics.jsonl
};

class MetricsLogger {
 public:
  // Files: <dump>/<save_tb_folder>/YYYYMMDD-HHMM[/rank_N], <dump>/metrics.jsonl (other ranks than rank 0,
  // when all save: <dump>/rank_N/metrics.jsonl). Throws Error(kUsage) when one cannot be
  // created.
  MetricsLogger(const config::JobConfig::Metrics& options, MeasuredRun run, MetricsSources sources);

  // For every (micro)batch fetched: its tokens on this rank and the seconds the fetch took.
  void add_batch(int64_t tokens, double data_loading_seconds);

  // Step 1 and every multiple of log_freq: the steps for which log() is to be called.
  bool should_log(int64_t step) const;
  void log(const StepMetrics& metrics);

  // Around a validation run: its tokens, time and memory peak do not count as training's.
  void begin_validation();
  void log_validation(int64_t step, double loss, const MetricList& extra = {});

  // A line of metrics.jsonl about something that happened after `step`: docs/metrics.md lists the events.
  // From any thread.
  void event(int64_t step, const std::string& name, JsonFields fields);

  // The resolved configuration, for TensorBoard's Text tab.
  void log_config(const std::string& toml);

 private:
  // What happened since the last logged step (or, inside it, since begin_validation()).
  struct Window {
    double start = 0;  // clock
    int64_t tokens = 0;
    int64_t batches = 0;
    double data_seconds = 0;
    int64_t steps_done = 0;  // the last step before the window
    DeviceMemory memory;     // peaks so far, as far as they were taken already
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
  Window window_;
  std::optional<Window> paused_;                            // training's window while a validation runs
  std::optional<std::pair<int64_t, double>> first_logged_;  // step and time
  int64_t warned_retries_ = 0;
  int64_t warned_ooms_ = 0;
};

}  // namespace hyperion::metrics
