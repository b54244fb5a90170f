#include "trainer/metrics/metrics_logger.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/counted.h"
#include "base/error.h"
#include "base/log.h"
#include "base/terminal.h"
#include "trainer/metrics/step_line.h"
#include "trainer/metrics/tracking.h"

namespace hyperion::metrics {
namespace {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double gib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

DeviceMemory larger(DeviceMemory a, const DeviceMemory& b) {
  a.max_active_bytes = std::max(a.max_active_bytes, b.max_active_bytes);
  a.max_reserved_bytes = std::max(a.max_reserved_bytes, b.max_reserved_bytes);
  a.max_active_percent = std::max(a.max_active_percent, b.max_active_percent);
  a.max_reserved_percent = std::max(a.max_reserved_percent, b.max_reserved_percent);
  a.num_alloc_retries = std::max(a.num_alloc_retries, b.num_alloc_retries);
  a.num_ooms = std::max(a.num_ooms, b.num_ooms);
  return a;
}

void append_memory(MetricList& list, const std::string& prefix, const DeviceMemory& memory) {
  list.emplace_back(prefix + "memory/max_active(GiB)", gib(memory.max_active_bytes));
  list.emplace_back(prefix + "memory/max_active(%)", memory.max_active_percent);
  list.emplace_back(prefix + "memory/max_reserved(GiB)", gib(memory.max_reserved_bytes));
  list.emplace_back(prefix + "memory/max_reserved(%)", memory.max_reserved_percent);
}

}  // namespace

MetricsLogger::MetricsLogger(const config::JobConfig::Metrics& options, MeasuredRun run,
                             MetricsSources sources)
    : options_(options),
      run_(std::move(run)),
      sources_(std::move(sources)),
      color_(terminal_escapes(STDOUT_FILENO)) {
  if (!sources_.clock) sources_.clock = steady_seconds;
  start_window(run_.start_step);
  if (!writes_files()) return;

  const std::string rank_folder = fmt::format("rank_{}", run_.rank);
  if (options_.enable_tensorboard) {
    auto folder = run_.dump_folder / options_.save_tb_folder /
                  fmt::format("{:%Y%m%d-%H%M}", fmt::localtime(run_.start_time));
    if (options_.save_for_all_ranks) folder /= rank_folder;
    tensorboard_.emplace(folder);
    log_info("TensorBoard logging enabled. Logs will be saved at {}", folder.string());
  }
  if (options_.enable_jsonl)
    jsonl_.emplace((run_.rank == 0 ? run_.dump_folder : run_.dump_folder / rank_folder) / kMetricsFile,
                   run_.starts_anew ? EarlierLines::kOfOthers : EarlierLines::kContinued);
}

void MetricsLogger::serve_prometheus(Descriptor listener, PrometheusFacts facts) {
  prometheus_.emplace(std::move(facts));
  server_.emplace(std::move(listener), [this] { return prometheus_->text(); });
}

void MetricsLogger::step_done(int64_t step, int64_t tokens_seen) {
  if (prometheus_) prometheus_->step_done(step, tokens_seen);
}

void MetricsLogger::add_batch(int64_t tokens, double data_loading_seconds) {
  window_.tokens += tokens;
  window_.batches += 1;
  window_.data_seconds += data_loading_seconds;
}

bool MetricsLogger::should_log(int64_t step) const {
  return step == 1 || step % options_.log_freq == 0;
}

void MetricsLogger::log(const StepMetrics& m) {
  const double seconds = sources_.clock() - window_.start;
  const double steps = static_cast<double>(std::max<int64_t>(m.step - window_.steps_done, 1));
  const double batches = static_cast<double>(std::max<int64_t>(window_.batches, 1));
  const double tps = tokens_per_second(seconds);
  const DeviceMemory memory = take_memory();
  if (run_.prints || writes_files()) {
    const double tflops = run_.flops_per_token_square * tps / 1e12;
    const auto mfu = [&](double flops_per_token) {
      return run_.peak_flops > 0 ? 100 * flops_per_token * tps / run_.peak_flops : 0.0;
    };
    const double mfu_square = mfu(run_.flops_per_token_square);
    const double step_seconds = seconds / steps;
    const double data_percent = seconds > 0 ? 100 * window_.data_seconds / seconds : 0.0;
    const double left = seconds_left(m.step, step_seconds);

    MetricList list = {
        {"loss_metrics/global_avg_loss", m.global_avg_loss},
        {"loss_metrics/global_max_loss", m.global_max_loss},
        {"grad_norm", m.grad_norm},
        {"throughput(tps)", tps},
        {"tflops", tflops},
        {"mfu(%)", mfu_square},
        {"mfu_causal(%)", mfu(run_.flops_per_token_causal)},  // ours
        {"time_metrics/end_to_end(s)", step_seconds},
        {"time_metrics/data_loading(s)", window_.data_seconds / batches},
        {"time_metrics/data_loading(%)", data_percent},
        {"time_metrics/eta(s)", left},  // ours
    };
    if (run_.tokenizer_rate > 0) {
      const int64_t world_size = run_.batch_ranks * run_.non_data_parallel_size;
      list.emplace_back("data/tokens_per_second_needed", tps * static_cast<double>(world_size));
      list.emplace_back("data/tokens_per_second_available", run_.tokenizer_rate);
    }
    append_memory(list, "", memory);
    list.emplace_back("memory/num_alloc_retries", static_cast<double>(memory.num_alloc_retries));
    list.emplace_back("memory/num_ooms", static_cast<double>(memory.num_ooms));
    list.emplace_back("n_tokens_seen", static_cast<double>(m.n_tokens_seen));
    list.emplace_back("lr", m.lr);
    list.insert(list.end(), m.extra.begin(), m.extra.end());
    write(m.step, list);
    if (prometheus_) prometheus_->logged(m.step, list);
    log_coloured(step_line({m.step, m.global_avg_loss, m.grad_norm, gib(memory.max_reserved_bytes),
                            memory.max_reserved_percent, tps, tflops, mfu_square, run_.total_steps, m.lr,
                            step_seconds, data_percent, left},
                           color_) +
                 (run_.dry_run ? "  (dry run: neither loss nor speed is a job's)" : ""));
    warn_about_memory(memory);
  }
  start_window(m.step);
}

void MetricsLogger::begin_validation() {
  window_.memory = take_memory();
  paused_ = window_;
  start_window(window_.steps_done);
  if (prometheus_) prometheus_->begin_validation();
}

void MetricsLogger::log_validation(int64_t step, double loss, const MetricList& losses) {
  if (!paused_) throw_bug("log_validation(step {}) without begin_validation()", step);
  const double seconds = sources_.clock() - window_.start;
  const double tps = tokens_per_second(seconds);
  const DeviceMemory memory = take_memory();
  if (run_.prints || writes_files()) {
    MetricList list = {{"validation_metrics/loss", loss}, {"validation_metrics/throughput(tps)", tps}};
    append_memory(list, "validation_metrics/", memory);
    list.insert(list.end(), losses.begin(), losses.end());
    write(step, list);
    if (prometheus_) prometheus_->validated(step, list);
    std::string line = validation_line(
        {step, loss, gib(memory.max_reserved_bytes), memory.max_reserved_percent, tps}, color_);
    for (const auto& [tag, value] : losses)
      line += fmt::format("  {}: {}", tag.substr(tag.rfind('/') + 1), python_fixed(value, 7, 4));
    log_coloured(line);
  }
  paused_->start += sources_.clock() - window_.start;  // the validation's time did not pass for training
  window_ = *std::exchange(paused_, std::nullopt);
}

void MetricsLogger::event(int64_t step, const std::string& name, JsonFields fields) {
  if (prometheus_) prometheus_->event(step, name, fields);
  if (!jsonl_) return;
  fields.emplace(fields.begin(), "event", name);
  jsonl_->append(json_line({step, unix_seconds(), run_.run_id}, fields));
  watch_trackers();
}

void MetricsLogger::log_config(const std::string& toml) {
  if (!tensorboard_) return;
  tensorboard_->text("config", "```toml\n" + toml + "\n```", run_.start_step, unix_seconds());
  tensorboard_->flush();
}

void MetricsLogger::start_window(int64_t steps_done) {
  window_ = Window{};
  window_.start = sources_.clock();
  window_.steps_done = steps_done;
}

double MetricsLogger::tokens_per_second(double seconds) const {
  const double shared_seconds = seconds * static_cast<double>(run_.non_data_parallel_size);
  return shared_seconds > 0 ? static_cast<double>(window_.tokens) / shared_seconds : 0.0;
}

// Extrapolates the time since the first logged step, validations and saves included. Steps up to the first
// logged one are slower and do not count.
double MetricsLogger::seconds_left(int64_t step, double step_seconds) {
  const double now = sources_.clock();
  if (!first_logged_) first_logged_ = {step, now};
  const auto [first, then] = *first_logged_;
  const auto work = [&](int64_t from, int64_t to) {  // of steps after `from`, up to `to`
    return run_.sequences_of_steps ? run_.sequences_of_steps(from, to) : static_cast<double>(to - from);
  };
  const double each = step > first ? (now - then) / work(first, step) : step_seconds / work(step - 1, step);
  return each * work(step, std::max(run_.total_steps, step));
}

DeviceMemory MetricsLogger::take_memory() {
  return larger(window_.memory, sources_.take_peak_memory ? sources_.take_peak_memory() : DeviceMemory{});
}

void MetricsLogger::warn_about_memory(const DeviceMemory& memory) {
  if (memory.num_alloc_retries > warned_retries_)
    log_warning("{} so far: the device is nearly full",
                counted(memory.num_alloc_retries, "memory allocation retry", "memory allocation retries"));
  if (memory.num_ooms > warned_ooms_)
    log_warning("{} so far", counted(memory.num_ooms, "out-of-memory error"));
  warned_retries_ = memory.num_alloc_retries;
  warned_ooms_ = memory.num_ooms;
}

void MetricsLogger::write(int64_t step, const MetricList& metrics) {
  const double time = unix_seconds();
  if (jsonl_) jsonl_->append(json_line({step, time, run_.run_id}, {metrics.begin(), metrics.end()}));
  watch_trackers();
  if (!tensorboard_) return;
  for (const auto& [tag, value] : metrics) tensorboard_->scalar(tag, value, step, time);
  tensorboard_->flush();
}

}  // namespace hyperion::metrics
