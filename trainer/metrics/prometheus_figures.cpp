#include "trainer/metrics/prometheus_figures.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/error.h"

namespace hyperion::metrics {
namespace {

enum class Type { kGauge, kCounter };

// A metric's name, without "hyperion_", and its HELP line.
struct Family {
  std::string_view name;
  Type type;
  std::string_view help;
};

// A figure of a logged step or of a validation; `scale` turns it into the base unit.
struct Row {
  std::string_view tag;
  Family family;
  double scale = 1;
  std::string_view label{};  // reason="thermal"
};

constexpr double kGiB = 1 << 30, kPercent = 0.01;
constexpr Type kGauge = Type::kGauge, kCounter = Type::kCounter;
constexpr Family kThrottled = {
    "gpu_throttled_ranks", kGauge,
    "Ranks whose GPU's clocks were lowered for this reason since the logged step before."};

constexpr Row kLogged[] = {
    {"loss_metrics/global_avg_loss", {"loss", kGauge, "Mean loss over the valid tokens of all ranks."}},
    {"loss_metrics/global_max_loss", {"loss_max", kGauge, "Largest mean loss of a rank."}},
    {"grad_norm", {"grad_norm", kGauge, "Global gradient norm before clipping."}},
    {"lr", {"learning_rate", kGauge, "Learning rate that the step used."}},
    {"throughput(tps)", {"tokens_per_second_per_device", kGauge, "Tokens per second and device."}},
    {"tflops",
     {"flops_per_second_per_device", kGauge, "Floating-point operations per second and device."},
     1e12},
    {"mfu(%)",
     {"mfu_ratio", kGauge, "Share of the device's peak, attention counted as torchtitan does."},
     kPercent},
    {"mfu_causal(%)",
     {"mfu_causal_ratio", kGauge, "Share of the device's peak, attention counted as causal."},
     kPercent},
    {"time_metrics/end_to_end(s)",
     {"step_duration_seconds", kGauge, "Mean time of a step, without validation."}},
    {"time_metrics/data_loading(s)", {"data_loading_seconds", kGauge, "Wait for the data of a microbatch."}},
    {"time_metrics/data_loading(%)",
     {"data_loading_ratio", kGauge, "Share of a step's time that waits for data."},
     kPercent},
    {"time_metrics/eta(s)", {"remaining_seconds", kGauge, "Time until training.steps are done."}},
    {"memory/max_active(GiB)", {"memory_active_bytes", kGauge, "Peak of rank 0's memory in use."}, kGiB},
    {"memory/max_active(%)", {"memory_active_ratio", kGauge, "The same as a share of the device."}, kPercent},
    {"memory/max_reserved(GiB)",
     {"memory_reserved_bytes", kGauge, "Peak of rank 0's reserved memory."},
     kGiB},
    {"memory/max_reserved(%)",
     {"memory_reserved_ratio", kGauge, "The same as a share of the device."},
     kPercent},
    {"memory/num_alloc_retries",
     {"memory_alloc_retries_total", kCounter, "Allocations of rank 0 made again."}},
    {"memory/num_ooms", {"memory_ooms_total", kCounter, "Allocations of rank 0 that failed."}},
    {"stragglers/own_time_max(s)",
     {"own_time_max_seconds", kGauge, "Longest own work of a rank in the logged step."}},
    {"stragglers/own_time_median(s)", {"own_time_median_seconds", kGauge, "Median of the ranks' own work."}},
    {"stragglers/slowest_over_median", {"own_time_max_over_median", kGauge, "The first over the second."}},
    {"stragglers/slowest_rank", {"slowest_rank", kGauge, "Rank with the longest own work."}},
    {"experts/worst_layer",
     {"experts_worst_layer", kGauge, "Block whose busiest expert is furthest above the mean."}},
    {"experts/busiest_over_mean",
     {"experts_busiest_over_mean", kGauge, "Tokens of that block's busiest expert over the mean."}},
    {"experts/idlest_over_mean",
     {"experts_idlest_over_mean", kGauge, "Tokens of that block's idlest expert over the mean."}},
    {"experts/most_rows_of_a_rank",
     {"experts_most_rows_of_rank", kGauge, "Rows of that block that the busiest rank multiplied."}},
    {"pipeline/bubble",
     {"pipeline_bubble_ratio", kGauge, "Share of all ranks' time that waits for other stages."}},
    {"pipeline/planned_bubble", {"pipeline_planned_bubble_ratio", kGauge, "The same in the plan."}},
    {"pipeline/slowest_rank", {"pipeline_slowest_rank", kGauge, "Pipeline rank whose stages work longest."}},
    {"pipeline/slowest_over_mean", {"pipeline_slowest_over_mean", kGauge, "Its time over the mean."}},
    {"gpu/ecc_corrected",
     {"gpu_ecc_corrected_total", kCounter,
      "Corrected memory errors of all GPUs since the start of the run."}},
    {"gpu/ecc_uncorrected",
     {"gpu_ecc_uncorrected_total", kCounter,
      "Uncorrected memory errors of all GPUs since the start of the run."}},
    {"gpu/remapped_rows",
     {"gpu_remapped_rows_total", kCounter,
      "Rows of memory replaced in all GPUs since the start of the run."}},
    {"gpu/throttled_ranks/thermal", kThrottled, 1, "reason=\"thermal\""},
    {"gpu/throttled_ranks/power_brake", kThrottled, 1, "reason=\"power_brake\""},
    {"gpu/throttled_ranks/hw_slowdown", kThrottled, 1, "reason=\"hw_slowdown\""},
    {"gpu/min_sm_clock(MHz)",
     {"gpu_min_sm_clock_hertz", kGauge, "Lowest clock of a GPU that was not idle."},
     1e6},
    {"gpu/max_temperature(C)", {"gpu_max_temperature_celsius", kGauge, "Highest temperature of a GPU."}},
    {"gpu/max_power(W)", {"gpu_max_power_watts", kGauge, "Highest power of a GPU."}},
    {"activations/max", {"activation_max", kGauge, "Largest element of the blocks' outputs."}},
};

constexpr Row kValidated[] = {
    {"validation_metrics/loss", {"validation_loss", kGauge, "Mean loss of the last validation."}},
    {"validation_metrics/throughput(tps)",
     {"validation_tokens_per_second_per_device", kGauge,
      "Tokens per second and device of the last validation."}},
    {"validation_metrics/memory/max_reserved(GiB)",
     {"validation_memory_reserved_bytes", kGauge, "Peak of rank 0's reserved memory in the last validation."},
     kGiB},
};

// A figure of each source: the source's name stands between `prefix` and `suffix`.
struct SourceRow {
  std::string_view prefix, suffix;
  Family family;
};
constexpr SourceRow kLoggedSources[] = {
    {"sources/", "/tokens", {"source_tokens", kGauge, "Tokens that the run has read from the source."}},
    {"sources/", "/epoch", {"source_epoch", kGauge, "Epochs of the source that are complete."}},
    {"sources/", "/loss", {"source_loss", kGauge, "Mean loss over the source's tokens in the logged step."}},
};
constexpr SourceRow kValidatedSources[] = {
    {"validation_metrics/loss/",
     "",
     {"validation_source_loss", kGauge, "Mean loss of a source in the last validation."}},
};

constexpr Family kRun = {"run_info", kGauge, "1, labelled with the start: its folder under runs/."},
                 kState = {"state", kGauge, "1 for the state that the job is in, 0 for the others."},
                 kExitCode = {"exit_code", kGauge, "Exit code of the job that has just ended."},
                 kRanks = {"ranks", kGauge, "Ranks of the job."},
                 kStarts = {"starts", kGauge, "Starts recorded in the job's folder, this one included."},
                 kStartTime = {"start_time_seconds", kGauge, "Time of this start since 1970."},
                 kPlanned = {"planned_steps", kGauge, "training.steps."},
                 kStep = {"step", kGauge, "The last finished step."},
                 kSteps = {"steps_total", kCounter, "Steps that this start has finished."},
                 kTokensSeen = {"tokens_seen", kGauge,
                                "Tokens that the run was trained on, earlier starts included."},
                 kTokens = {"tokens_total", kCounter, "Tokens that this start has trained on."},
                 kStepTime = {"last_step_timestamp_seconds", kGauge,
                              "Time at which the last step was finished."},
                 kLoggedStep = {"logged_step", kGauge, "Step of the figures that are logged."},
                 kLoggedTime = {"logged_timestamp_seconds", kGauge, "Time at which they were logged."},
                 kValidationStep = {"validation_step", kGauge, "Step of the last validation."},
                 kSaves = {"checkpoints_total", kCounter,
                           "Checkpoints of this start: durable, and failed ones."},
                 kSavedTime = {"checkpoint_durable_timestamp_seconds", kGauge,
                               "Time at which the last checkpoint was durable."},
                 kSavedStep = {"checkpoint_durable_step", kGauge, "Step of that checkpoint."},
                 kSaveSeconds = {"checkpoint_write_duration_seconds", kGauge, "Time that its writing took."},
                 kSavedBytes = {"checkpoint_size_bytes", kGauge, "Its size."},
                 kStall = {"checkpoint_stall_seconds", kGauge, "Time that the last save held training up."},
                 kFailureTime = {"checkpoint_failure_timestamp_seconds", kGauge,
                                 "Time of the last failed save."},
                 kLeftOut = {"sources_left_out", kGauge, "Sources without series here: only 64 have some."};
constexpr const Family* kOwn[] = {
    &kRun,       &kState,       &kExitCode,   &kRanks,  &kStarts,      &kStartTime,  &kPlanned,
    &kStep,      &kSteps,       &kTokensSeen, &kTokens, &kStepTime,    &kSaves,      &kSavedTime,
    &kSavedStep, &kSaveSeconds, &kSavedBytes, &kStall,  &kFailureTime, &kLoggedStep, &kLoggedTime};

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}
std::string number(int64_t value) {
  return std::to_string(value);
}

std::string label(std::string_view name, std::string_view value) {
  std::string escaped;
  for (const char c : value) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c == '\n' ? "\\n" : std::string(1, c);
  }
  return fmt::format("{}=\"{}\"", name, escaped);
}

void head(std::string& out, const Family& family) {
  fmt::format_to(std::back_inserter(out), "# HELP hyperion_{0} {1}\n# TYPE hyperion_{0} {2}\n", family.name,
                 family.help, family.type == Type::kGauge ? "gauge" : "counter");
}

template <typename Number>
void sample(std::string& out, const Family& family, std::string_view labels, Number value) {
  fmt::format_to(std::back_inserter(out), "hyperion_{}{}{}{} {}\n", family.name, labels.empty() ? "" : "{",
                 labels, labels.empty() ? "" : "}", number(value));
}

template <typename Number>
void single(std::string& out, const Family& family, Number value) {
  head(out, family);
  sample(out, family, "", value);
}

// Writes the metric unless its value is unknown (NaN).
void known(std::string& out, const Family& family, double value) {
  if (!std::isnan(value)) single(out, family, value);
}

void write_rows(std::string& out, const MetricList& list, std::span<const Row> rows) {
  std::string_view written;
  for (const Row& row : rows) {
    const auto found =
        std::ranges::find(list, row.tag, [](const auto& metric) { return std::string_view(metric.first); });
    if (found == list.end()) continue;
    if (std::exchange(written, row.family.name) != row.family.name) head(out, row.family);
    sample(out, row.family, row.label, found->second * row.scale);
  }
}

std::string_view source_of(std::string_view tag, const SourceRow& row) {
  const size_t ends = row.prefix.size() + row.suffix.size();
  if (tag.size() <= ends || !tag.starts_with(row.prefix) || !tag.ends_with(row.suffix)) return {};
  return tag.substr(row.prefix.size(), tag.size() - ends);
}

// The first sources of the list have series; the names of the rest are added to `left_out`.
void write_sources(std::string& out, const MetricList& list, std::span<const SourceRow> rows,
                   std::set<std::string_view>& left_out) {
  for (const SourceRow& row : rows) {
    size_t written = 0;
    for (const auto& [tag, value] : list) {
      const std::string_view source = source_of(tag, row);
      if (source.empty()) continue;
      if (written == PrometheusFigures::kMaxSources) {
        left_out.insert(source);
        continue;
      }
      if (written++ == 0) head(out, row.family);
      sample(out, row.family, label("source", source), value);
    }
  }
}

double field(const JsonFields& fields, std::string_view key) {
  for (const auto& [name, value] : fields) {
    if (name != key) continue;
    if (const auto* integer = std::get_if<int64_t>(&value)) return static_cast<double>(*integer);
    if (const auto* real = std::get_if<double>(&value)) return *real;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

bool has_text(const JsonFields& fields, std::string_view key, std::string_view text) {
  return std::ranges::any_of(fields, [&](const auto& entry) {
    const auto* value = std::get_if<std::string>(&entry.second);
    return entry.first == key && value != nullptr && *value == text;
  });
}

}  // namespace

PrometheusFigures::PrometheusFigures(PrometheusFacts facts)
    : facts_(std::move(facts)), step_(facts_.start_step), tokens_seen_(facts_.tokens_seen) {}

void PrometheusFigures::step_done(int64_t step, int64_t tokens_seen) {
  step_ = step;
  tokens_seen_ = tokens_seen;
  step_time_ = unix_seconds();
  state_ = State::kTraining;
}

void PrometheusFigures::logged(int64_t step, const MetricList& metrics) {
  lists_.training = {step, unix_seconds(), metrics};
  published_.back() = lists_;
  published_.publish();
}

void PrometheusFigures::begin_validation() {
  state_ = State::kValidating;
}

void PrometheusFigures::validated(int64_t step, const MetricList& metrics) {
  lists_.validation = {step, unix_seconds(), metrics};
  published_.back() = lists_;
  published_.publish();
  state_ = State::kTraining;
}

void PrometheusFigures::event(int64_t step, const std::string& name, const JsonFields& fields) {
  if (name == "checkpoint_staged") {
    stall_seconds_ = field(fields, "stall_seconds");
  } else if (name == "checkpoint_failed") {
    ++failed_saves_;
    failure_time_ = unix_seconds();
  } else if (name == "checkpoint_durable" && !has_text(fields, "kind", "pre-checkpoint")) {
    const double commit = field(fields, "commit_seconds");  // a model for Hugging Face has none
    ++saved_;
    saved_step_ = static_cast<double>(step);
    save_seconds_ = field(fields, "write_seconds") + (std::isnan(commit) ? 0 : commit);
    saved_bytes_ = field(fields, "bytes");
    saved_time_ = unix_seconds();
  } else if (name == "end") {
    const double code = field(fields, "exit_code");
    const auto is = [&](ExitCode value) { return code == static_cast<double>(value); };
    exit_code_ = code;
    state_ = is(ExitCode::kOk) ? State::kCompleted
             : is(ExitCode::kStoppedSaved) || is(ExitCode::kInterrupted) || is(ExitCode::kTerminated)
                 ? State::kStopped
                 : State::kFailed;
  }
}

void PrometheusFigures::write_progress(std::string& out) const {
  head(out, kRun);
  sample(out, kRun, label("run_id", facts_.run_id), int64_t{1});
  head(out, kState);
  constexpr std::string_view kStates[] = {"starting",  "training", "validating",
                                          "completed", "stopped",  "failed"};
  const auto now = static_cast<size_t>(state_.load());
  for (size_t i = 0; i < std::size(kStates); ++i)
    sample(out, kState, label("state", kStates[i]), int64_t{i == now});
  known(out, kExitCode, exit_code_);
  single(out, kRanks, facts_.ranks);
  single(out, kStarts, facts_.starts);
  single(out, kStartTime, facts_.start_time);
  single(out, kPlanned, facts_.total_steps);
  const int64_t step = step_, tokens = tokens_seen_;
  single(out, kStep, step);
  single(out, kSteps, step - facts_.start_step);
  single(out, kTokensSeen, tokens);
  single(out, kTokens, tokens - facts_.tokens_seen);
  known(out, kStepTime, step_time_);
}

void PrometheusFigures::write_checkpoints(std::string& out) const {
  head(out, kSaves);
  sample(out, kSaves, "result=\"durable\"", saved_.load());
  sample(out, kSaves, "result=\"failed\"", failed_saves_.load());
  known(out, kSavedTime, saved_time_);
  known(out, kSavedStep, saved_step_);
  known(out, kSaveSeconds, save_seconds_);
  known(out, kSavedBytes, saved_bytes_);
  known(out, kStall, stall_seconds_);
  known(out, kFailureTime, failure_time_);
}

std::string PrometheusFigures::text() {
  const Lists& lists = published_.newest();
  std::string out;
  std::set<std::string_view> left_out;
  write_progress(out);
  write_checkpoints(out);
  if (const Logged& training = lists.training; training.time > 0) {
    single(out, kLoggedStep, training.step);
    single(out, kLoggedTime, training.time);
    write_rows(out, training.metrics, kLogged);
    write_sources(out, training.metrics, kLoggedSources, left_out);
  }
  if (const Logged& validation = lists.validation; validation.time > 0) {
    single(out, kValidationStep, validation.step);
    write_rows(out, validation.metrics, kValidated);
    write_sources(out, validation.metrics, kValidatedSources, left_out);
  }
  if (!left_out.empty()) single(out, kLeftOut, static_cast<int64_t>(left_out.size()));
  return out;
}

std::vector<std::string> prometheus_names() {
  std::vector<std::string> names;
  const auto add = [&](const Family& family) {
    std::string name = fmt::format("hyperion_{}", family.name);
    if (names.empty() || names.back() != name) names.push_back(std::move(name));
  };
  for (const Family* family : kOwn) add(*family);
  for (const Row& row : kLogged) add(row.family);
  for (const SourceRow& row : kLoggedSources) add(row.family);
  add(kValidationStep);
  for (const Row& row : kValidated) add(row.family);
  for (const SourceRow& row : kValidatedSources) add(row.family);
  add(kLeftOut);
  return names;
}

}  // namespace hyperion::metrics
