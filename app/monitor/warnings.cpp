#include "app/monitor/warnings.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "app/report/axis.h"
#include "base/counted.h"
#include "base/error.h"

namespace hyperion::monitor {
namespace {

using report::MetricRow;
using report::RowKind;

struct Counter {
  const char* tag;
  const char* one;
  const char* many;
  Tone tone;
};

// Numbers of the newest training row that are 0 in a healthy run.
constexpr Counter kCounters[] = {
    {"gpu/ecc_uncorrected", "uncorrected memory (ECC) error", "uncorrected memory (ECC) errors", Tone::kBad},
    {"gpu/remapped_rows", "remapped row of GPU memory", "remapped rows of GPU memory", Tone::kBad},
    {"gpu/throttled_ranks/thermal", "rank throttled (thermal)", "ranks throttled (thermal)", Tone::kWarning},
    {"gpu/throttled_ranks/power_brake", "rank throttled (power brake)", "ranks throttled (power brake)",
     Tone::kWarning},
    {"gpu/throttled_ranks/hw_slowdown", "rank throttled (hardware slowdown)",
     "ranks throttled (hardware slowdown)", Tone::kWarning},
    {"gpu/ecc_corrected", "corrected memory (ECC) error", "corrected memory (ECC) errors", Tone::kWarning},
    {"memory/num_ooms", "out-of-memory error", "out-of-memory errors", Tone::kBad},
    {"memory/num_alloc_retries", "memory allocation retry: the device is nearly full",
     "memory allocation retries: the device is nearly full", Tone::kWarning},
};

constexpr double kUsualLogFreq = 10;    // the default of metrics.log_freq
constexpr double kSlowRank = 1.1;       // over the median, as RankWarnings::kSlow
constexpr double kSlowSeconds = 0.01;   // as RankWarnings::kSlowSeconds
constexpr double kWaitingForData = 10;  // percent of a step

}  // namespace

std::optional<Span> ending(const report::ReportRun& run) {
  const std::vector<MetricRow>& events = run.history.events();
  if (events.empty() || events.front().event != "end") return std::nullopt;
  const double code = run.value(&events.front(), "end.exit_code").value_or(0);
  const bool orderly =
      code == static_cast<int>(ExitCode::kOk) || code == static_cast<int>(ExitCode::kStoppedSaved);
  return Span{"ended: " + events.front().details, orderly ? Tone::kGood : Tone::kBad};
}

const MetricRow* start_without_step(const report::ReportRun& run) {
  const auto& events = run.history.events();
  const auto start = std::ranges::find(events, "start", &MetricRow::event);
  if (start == events.end()) return nullptr;
  const MetricRow* training = run.history.newest(RowKind::kTraining);
  const bool logged =
      training != nullptr && *training->value(report::kTimeTag) >= *start->value(report::kTimeTag);
  return logged ? nullptr : &*start;
}

namespace {

// Returns the seconds from one logged step to the next: as last seen, or before a second one as many steps as
// metrics.log_freq says.
double line_seconds(const MonitoredRun& state) {
  const report::ReportRun& run = state.run();
  const double step =
      run.value(run.history.newest(RowKind::kTraining), "time_metrics/end_to_end(s)").value_or(0);
  const double finite_step = std::isfinite(step) ? step : 0;
  if (state.line_seconds) return std::max(*state.line_seconds, finite_step);
  const auto& starts = run.starts.starts;
  const auto log_freq = starts.empty() ? std::nullopt : starts.back().number("metrics.log_freq");
  return finite_step * std::max(1.0, log_freq.value_or(kUsualLogFreq));
}

}  // namespace

bool is_stale(const MonitoredRun& state, double now) {
  const report::ReportRun& run = state.run();
  const MetricRow* training = run.history.newest(RowKind::kTraining);
  if (training == nullptr || ending(run) || start_without_step(run) != nullptr) return false;
  return now - run.history.last_time() > std::max(kStaleLines * line_seconds(state), kStaleSeconds);
}

std::vector<Span> warnings_of(const MonitoredRun& state, double now, bool utf8) {
  const report::ReportRun& run = state.run();
  const MetricRow* row = run.history.newest(RowKind::kTraining);
  std::vector<Span> warnings;
  const auto warn = [&](const std::string& text, Tone tone = Tone::kWarning) {
    warnings.push_back({safe_text(text, utf8), tone});
  };
  if (!state.problem.empty()) warn(state.problem, Tone::kBad);
  if (const auto end = ending(run); end && end->tone == Tone::kBad) warn(end->text, Tone::kBad);
  if (const auto step = run.history.first_non_finite_step())
    warn(fmt::format("loss or gradient norm not finite, first at step {}", *step), Tone::kBad);
  if (is_stale(state, now)) {
    warn(
        fmt::format("no new line for {}, where one comes every {} at most: the job hangs, was killed, or "
                    "cannot write",
                    report::duration_text(now - run.history.last_time()),
                    report::duration_text(std::ceil(line_seconds(state)))));
  }
  std::vector<const MetricRow*> failed;
  for (const MetricRow& event : run.history.events())
    if (event.event == "checkpoint_failed") failed.push_back(&event);
  if (!failed.empty())
    warn(fmt::format("{} failed, the newest at step {}: {}", counted(failed.size(), "save"), failed[0]->step,
                     failed[0]->details),
         Tone::kBad);
  for (const Counter& counter : kCounters) {
    const double count = run.value(row, counter.tag).value_or(0);
    if (count >= 1 && count < 1e18)
      warn(counted(static_cast<uint64_t>(count), counter.one, counter.many), counter.tone);
  }
  const double slow = run.value(row, "stragglers/slowest_over_median").value_or(1);
  const double longest = run.value(row, "stragglers/own_time_max(s)").value_or(0);
  if (slow > kSlowRank && longest - longest / slow > kSlowSeconds)
    warn(fmt::format("rank {} works {:.3g} x as long as the median: all ranks wait for it",
                     report::number_text(run.value(row, "stragglers/slowest_rank").value_or(0)), slow));
  if (run.value(row, "experts/idlest_over_mean").value_or(1) == 0)
    warn(fmt::format("expert {} of block {} got no token",
                     report::number_text(run.value(row, "experts/idlest").value_or(0)),
                     report::number_text(run.value(row, "experts/worst_layer").value_or(0))));
  const double data = run.value(row, "time_metrics/data_loading(%)").value_or(0);
  if (data > kWaitingForData) warn(fmt::format("{:.3g} % of a step's time is waiting for data", data));
  if (run.bad_lines > 0)
    warn(fmt::format("{} of {} in metrics.jsonl could not be read", format_count(run.bad_lines),
                     counted(run.lines, "line")));
  if (run.tags_left_out > 0)
    warn(counted(run.tags_left_out, "field") + " left out: too many different names, or one too long");
  for (const std::string& problem : run.starts.problems) warn(problem);
  return warnings;
}

}  // namespace hyperion::monitor
