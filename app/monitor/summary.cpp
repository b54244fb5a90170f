#include "app/monitor/summary.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "app/monitor/warnings.h"
#include "app/report/axis.h"
#include "base/counted.h"

namespace hyperion::monitor {
namespace {

using report::duration_text;
using report::MetricRow;
using report::number_text;
using report::RowKind;

std::string step_text(int64_t step) {
  return format_count(static_cast<uint64_t>(std::max<int64_t>(step, 0)));
}

// Five digits, or whole numbers from 1,000: "3.4567", "6,150"
std::string figure(double value) {
  const bool large = std::abs(value) >= 1e3 || !std::isfinite(value);
  return large ? number_text(std::round(value)) : fmt::format("{:.5g}", value);
}

// "1.234 s", "12.3 ms"
std::string seconds_text(double seconds) {
  if (!(seconds < 60)) return duration_text(seconds);
  return seconds >= 0.1 ? fmt::format("{:.4g} s", seconds) : fmt::format("{:.3g} ms", 1000 * seconds);
}

std::string bytes_text(double bytes) {
  return bytes >= 0 && bytes < 1e19 ? format_bytes(static_cast<uint64_t>(bytes)) : number_text(bytes);
}

class Summarizer {
 public:
  Summarizer(const MonitoredRun& state, double now, bool utf8)
      : state_(state),
        run_(state.run()),
        now_(now),
        utf8_(utf8),
        training_(run_.history.newest(RowKind::kTraining)),
        validation_(run_.history.newest(RowKind::kValidation)),
        start_(newest_event("start")) {}

  Summary summary() {
    step();
    loss();
    gradient();
    speed();
    step_time();
    memory();
    gpus();
    experts();
    pipeline();
    sources();
    checkpoint();
    starts();
    result_.condition = condition();
    result_.warnings = warnings_of(state_, now_, utf8_);
    return std::move(result_);
  }

 private:
  std::optional<double> training(const char* tag) const { return run_.value(training_, tag); }

  const MetricRow* newest_event(std::string_view name) const {
    for (const MetricRow& event : run_.history.events())
      if (event.event == name) return &event;
    return nullptr;
  }

  double age(const MetricRow& row) const { return now_ - *row.value(report::kTimeTag); }

  std::string setting(const std::string& key) const {
    if (run_.starts.starts.empty()) return "";
    const auto& settings = run_.starts.starts.back().settings;
    const auto found = settings.find(key);
    return found == settings.end() ? "" : found->second;
  }

  // Adds a fact unless it has no parts. Empty parts are left out.
  void add(const char* label, int importance, std::vector<Span> parts) {
    std::erase_if(parts, [](const Span& part) { return part.text.empty(); });
    if (!parts.empty()) result_.facts.push_back({label, std::move(parts), importance});
  }

  // "BEFORE 12.3 AFTER"; "" without the tag
  std::string part(const char* before, const char* tag, const char* after = "") const {
    const auto value = training(tag);
    return value ? before + figure(*value) + after : "";
  }

  Span condition() const {
    if (state_.waiting) return {"waiting", Tone::kFaint};
    const std::string since = duration_text(now_ - run_.history.last_time()) + " ago";
    if (const auto end = ending(run_)) return {safe_text(end->text, utf8_, 80) + ", " + since, end->tone};
    if (const MetricRow* start = start_without_step(run_))
      return {"no step logged yet, started " + duration_text(age(*start)) + " ago", Tone::kPlain};
    if (training_ == nullptr) return {"no step logged yet", Tone::kPlain};
    if (is_stale(state_, now_)) return {"no new line, the last one " + since, Tone::kWarning};
    return {"running, newest line " + since, Tone::kGood};
  }

  void step() {
    const MetricRow* row = training_ != nullptr ? training_ : run_.history.newest(RowKind::kEvent);
    if (row == nullptr) return;
    const MetricRow* begun = start_without_step(run_);
    const int64_t done = begun != nullptr ? begun->step : row->step;
    std::vector<Span> parts = {{step_text(done), Tone::kStrong}};
    double steps =
        run_.starts.starts.empty() ? 0 : run_.starts.starts.back().number("training.steps").value_or(0);
    if (steps < 1) steps = run_.value(start_, "start.steps").value_or(0);
    if (steps >= 1 && steps < 1e15) {
      result_.progress = std::clamp(static_cast<double>(done) / steps, 0.0, 1.0);
      parts.back().text += " of " + number_text(std::floor(steps));
      parts.push_back({fmt::format("{:.1f} %", std::floor(1000 * result_.progress) / 10)});
    }
    const auto left = training("time_metrics/eta(s)");
    if (left && std::isfinite(*left) && *left > 0 && !ending(run_))
      parts.push_back({duration_text(std::max(*left - age(*training_), 0.0)) + " to go", Tone::kStrong});
    if (const auto tokens = training("n_tokens_seen"))
      parts.push_back({report::tick_label(*tokens) + " tokens"});
    if (const uint64_t attempts = run_.history.attempt_count(); attempts > 1)
      parts.push_back({counted(attempts - 1, "restart")});
    add("step", 10, std::move(parts));
  }

  void loss() {
    std::vector<Span> parts;
    if (const auto loss = training("loss_metrics/global_avg_loss"))
      parts.push_back({figure(*loss), std::isfinite(*loss) ? Tone::kStrong : Tone::kBad});
    if (const auto loss = run_.value(validation_, "validation_metrics/loss"))
      parts.push_back({fmt::format("validation {} at step {}", figure(*loss), step_text(validation_->step))});
    parts.push_back({part("highest of a rank ", "loss_metrics/global_max_loss")});
    if (const auto rate = training("lr")) parts.push_back({fmt::format("lr {:.3g}", *rate)});
    add("loss", 9, std::move(parts));
  }

  void gradient() {
    std::vector<Span> parts;
    if (const auto norm = training("grad_norm"))
      parts.push_back({"norm " + figure(*norm), std::isfinite(*norm) ? Tone::kPlain : Tone::kBad});
    report::ValueRange clipped;
    for (const auto& [index, bucket] : run_.history.current(RowKind::kTraining).buckets())
      clipped.add(bucket.range(report::kClippedTag));
    if (clipped.count > 0) parts.push_back({fmt::format("{:.3g} % of steps clipped", 100 * clipped.mean())});
    add("gradient", 5, std::move(parts));
  }

  void speed() {
    std::vector<Span> parts = {{part("", "throughput(tps)", " tokens/s per rank"), Tone::kStrong}};
    const double ranks = run_.value(start_, "start.ranks").value_or(0);
    const auto tps = training("throughput(tps)");
    if (const auto mfu = training("mfu(%)"); mfu && *mfu > 0)
      parts.push_back({fmt::format("MFU {:.3g} %", *mfu), Tone::kStrong});
    if (tps && ranks > 1)
      parts.push_back({fmt::format("{} of {} ranks", figure(*tps * ranks), number_text(ranks))});
    if (const auto tflops = training("tflops"); tflops && *tflops > 0)
      parts.push_back({fmt::format("{:.4g} TFLOP/s", *tflops)});
    add("speed", 8, std::move(parts));
  }

  // All ranks wait for the slowest one: what a rank waits is the step less its own work.
  void step_time() {
    const auto step = training("time_metrics/end_to_end(s)");
    std::vector<Span> parts;
    if (step) parts.push_back({seconds_text(*step), Tone::kStrong});
    const auto slowest = training("stragglers/slowest_rank"),
               longest = training("stragglers/own_time_max(s)");
    const auto median = training("stragglers/own_time_median(s)");
    if (const auto data = training("time_metrics/data_loading(%)"))
      parts.push_back({fmt::format("{:.2g} % waiting for data", *data)});
    if (slowest && longest)
      parts.push_back(
          {fmt::format("slowest rank {} works {}", number_text(*slowest), seconds_text(*longest))});
    if (median && longest && *median > 0)
      parts.push_back({fmt::format("{:.3g} x the median", *longest / *median)});
    if (median && step && *step > *median)
      parts.push_back({fmt::format("the median rank waits {} for others", seconds_text(*step - *median))});
    add("step time", 7, std::move(parts));
  }

  void memory() {
    std::string reserved = part("", "memory/max_reserved(GiB)", " GiB peak");
    if (const auto share = training("memory/max_reserved(%)"); share && !reserved.empty())
      reserved += fmt::format(" ({:.3g} %)", *share);
    add("memory", 6, {{reserved}, {part("active ", "memory/max_active(GiB)", " GiB")}});
  }

  void gpus() {
    add("GPUs", 2,
        {{part("hottest ", "gpu/max_temperature(C)", " C")},
         {part("highest power ", "gpu/max_power(W)", " W")},
         {part("lowest clock ", "gpu/min_sm_clock(MHz)", " MHz")}});
  }

  void experts() {
    const auto busiest = training("experts/busiest"), idlest = training("experts/idlest");
    const auto most = training("experts/busiest_over_mean"), least = training("experts/idlest_over_mean");
    if (!busiest || !most) return;
    std::vector<Span> parts = {
        {fmt::format("busiest {} has {:.3g} x the mean", number_text(*busiest), *most), Tone::kStrong}};
    if (idlest && least) parts.push_back({fmt::format("idlest {} {:.3g} x", number_text(*idlest), *least)});
    parts.push_back({part("in block ", "experts/worst_layer")});
    parts.push_back({part("", "experts/most_rows_of_a_rank", " rows on a rank")});
    add("experts", 4, std::move(parts));
  }

  void pipeline() {
    const auto bubble = training("pipeline/bubble"), planned = training("pipeline/planned_bubble");
    if (!bubble) return;
    std::vector<Span> parts = {{fmt::format("bubble {:.3g} %", 100 * *bubble), Tone::kStrong}};
    if (planned) parts.push_back({fmt::format("planned {:.3g} %", 100 * *planned)});
    const auto slowest = training("pipeline/slowest_rank"), over = training("pipeline/slowest_over_mean");
    if (slowest && over)
      parts.push_back(
          {fmt::format("slowest stages of rank {}, {:.3g} x the mean", number_text(*slowest), *over)});
    add("pipeline", 4, std::move(parts));
  }

  // The sources with the most tokens first.
  void sources() {
    struct Source {
      std::optional<double> tokens, epoch, loss;
    };
    std::map<std::string, Source> found;
    double all = 0;
    for (const std::string& tag : run_.tags) {
      if (!tag.starts_with("sources/")) continue;
      const size_t end = tag.rfind('/');
      const std::string kind = tag.substr(end + 1), name = tag.substr(8, std::max<size_t>(end, 8) - 8);
      const auto value = training(tag.c_str());
      if (!value || name.empty()) continue;
      if (kind == "tokens") found[name].tokens = value, all += *value;
      if (kind == "epoch") found[name].epoch = value;
      if (kind == "loss") found[name].loss = value;
    }
    std::vector<std::pair<double, std::string>> parts;
    for (const auto& [name, source] : found) {
      std::string text = safe_text(name, utf8_, 24);
      if (source.tokens && all > 0) text += fmt::format(" {:.3g} %", 100 * *source.tokens / all);
      if (source.epoch) text += fmt::format(" epoch {:.3g}", *source.epoch);
      if (source.loss) text += " loss " + figure(*source.loss);
      parts.emplace_back(-source.tokens.value_or(0), text);
    }
    std::ranges::stable_sort(parts, {}, [](const auto& part) { return part.first; });
    std::vector<Span> spans;
    for (auto& [tokens, text] : parts) spans.push_back({std::move(text)});
    add("sources", 3, std::move(spans));
  }

  void checkpoint() {
    const MetricRow *durable = newest_event("checkpoint_durable"),
                    *staged = newest_event("checkpoint_staged");
    if (durable == nullptr && staged == nullptr) {
      if (training_ != nullptr && setting("checkpoint.enable") == "true")
        add("checkpoint", 6, {{"none yet", Tone::kFaint}});
      return;
    }
    std::vector<Span> parts;
    const bool ended = ending(run_).has_value();
    if (staged != nullptr && !ended && (durable == nullptr || age(*staged) < age(*durable)))
      parts.push_back(
          {fmt::format("step {} being written for {}", step_text(staged->step), duration_text(age(*staged))),
           Tone::kStrong});
    if (durable != nullptr) {
      parts.push_back({fmt::format("step {} {} ago", step_text(durable->step), duration_text(age(*durable))),
                       Tone::kStrong});
      std::string written;
      if (const auto bytes = run_.value(durable, "checkpoint_durable.bytes"))
        written = bytes_text(*bytes) + " ";
      if (const auto seconds = run_.value(durable, "checkpoint_durable.write_seconds"))
        parts.push_back({fmt::format("{}written in {}", written, seconds_text(*seconds))});
    }
    if (const auto stall = run_.value(staged, "checkpoint_staged.stall_seconds"))
      parts.push_back({"training waited " + seconds_text(*stall)});
    add("checkpoint", 6, std::move(parts));
  }

  void starts() {
    std::vector<Span> parts;
    if (run_.starts.count > 0) parts.push_back({counted(run_.starts.count, "start")});
    if (start_ != nullptr)
      parts.push_back(
          {fmt::format("newest {} ago after step {}", duration_text(age(*start_)), step_text(start_->step))});
    if (!run_.starts.starts.empty()) {
      const auto& fields = run_.starts.starts.back().fields;
      for (const char* name : {"devices", "host"})
        if (const auto field = fields.find(name); field != fields.end())
          parts.push_back(
              {(name == std::string_view("host") ? "host " : "") + safe_text(field->second, utf8_, 60)});
    }
    add("starts", 3, std::move(parts));
  }

  const MonitoredRun& state_;
  const report::ReportRun& run_;
  double now_;
  bool utf8_;
  const MetricRow *training_, *validation_, *start_;
  Summary result_;
};

}  // namespace

Summary summarize(const MonitoredRun& state, double now, bool utf8) {
  return Summarizer(state, now, utf8).summary();
}

}  // namespace hyperion::monitor
