#include "app/report/report_data.h"

#include <cmath>
#include <set>

namespace hyperion::report {
namespace {

enum Axis : bool { kFitted, kFromZero };
enum Curve : bool { kSmooth, kNoisy };

struct PlotSpec {
  const char* title;
  const char* unit;
  RowKind kind;
  const char* tag;
  Axis axis = kFitted;
  Curve curve = kSmooth;
  const char* reference = "";
};

constexpr const char* kDeviceMemory = "memory of the device";

constexpr PlotSpec kPlots[] = {
    {"Loss", "mean over the batch's tokens", RowKind::kTraining, "loss_metrics/global_avg_loss", kFitted,
     kNoisy},
    {"Validation loss", "", RowKind::kValidation, "validation_metrics/loss"},
    {"Gradient norm", "before clipping; circles: clipped steps", RowKind::kTraining, "grad_norm", kFitted,
     kNoisy, "training.max_norm"},
    {"Learning rate", "", RowKind::kTraining, "lr", kFromZero},
    {"Throughput", "tokens per second per rank", RowKind::kTraining, "throughput(tps)", kFromZero, kNoisy},
    {"Model FLOPs utilisation", "%", RowKind::kTraining, "mfu(%)", kFromZero, kNoisy},
    {"Step time", "seconds", RowKind::kTraining, "time_metrics/end_to_end(s)", kFromZero, kNoisy},
    {"Waiting for data", "% of the step time", RowKind::kTraining, "time_metrics/data_loading(%)", kFromZero,
     kNoisy},
    {"Slowest rank", "its own work over the median of all ranks", RowKind::kTraining,
     "stragglers/slowest_over_median", kFitted, kNoisy},
    {"Pipeline bubble", "part of the ranks' time in which they wait for other stages", RowKind::kTraining,
     "pipeline/bubble", kFromZero, kNoisy},
    {"Busiest expert", "its tokens over the mean, in the worst block", RowKind::kTraining,
     "experts/busiest_over_mean", kFromZero, kNoisy},
    {"Peak memory", "GiB per rank", RowKind::kTraining, "memory/max_reserved(GiB)", kFromZero, kSmooth,
     kDeviceMemory},
    {"Checkpoint: training waited", "seconds per save", RowKind::kEvent, "checkpoint_staged.stall_seconds",
     kFromZero},
    {"Checkpoint: time to write", "seconds per save", RowKind::kEvent, "checkpoint_durable.write_seconds",
     kFromZero},
};

// Tags without a plot: places, what is in a plot as another unit, and constants of a start.
constexpr const char* kNotPlotted[] = {"time",
                                       "n_tokens_seen",
                                       "resume/step",
                                       "grad_norm > training.max_norm",
                                       "resume/last_loss",
                                       "stragglers/slowest_rank",
                                       "stragglers/own_time_max(s)",
                                       "pipeline/planned_bubble",
                                       "experts/busiest",
                                       "experts/idlest",
                                       "experts/idlest_over_mean",
                                       "experts/worst_layer",
                                       "experts/most_rows_of_a_rank",
                                       "pipeline/slowest_rank",
                                       "time_metrics/eta(s)",
                                       "memory/max_reserved(%)",
                                       "memory/max_active(%)",
                                       "validation_metrics/memory/max_reserved(%)",
                                       "validation_metrics/memory/max_active(%)"};

using Buckets = std::vector<const StepBuckets::Bucket*>;
const StepBuckets::Bucket kGap;  // without a value: no line goes over it

// A gap where the distance to the next bucket is more than four times the usual one.
Buckets with_gaps(const Buckets& buckets) {
  std::vector<double> distances;
  for (size_t i = 1; i < buckets.size(); ++i)
    distances.push_back(buckets[i]->steps.smallest - buckets[i - 1]->steps.largest);
  if (distances.empty()) return buckets;
  std::vector<double> sorted = distances;
  const auto middle = sorted.begin() + static_cast<int64_t>((sorted.size() - 1) / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  Buckets result = {buckets[0]};
  for (size_t i = 1; i < buckets.size(); ++i) {
    if (std::floor(distances[i - 1] / 4) > *middle) result.push_back(&kGap);
    result.push_back(buckets[i]);
  }
  return result;
}

std::optional<int> tag_number(const ReportRun& run, const std::string& tag) {
  const auto found = std::ranges::find(run.tags, tag);
  if (found == run.tags.end()) return std::nullopt;
  return static_cast<int>(found - run.tags.begin());
}

std::vector<double> means(const Buckets& buckets, int tag) {
  std::vector<double> values;
  for (const auto* bucket : buckets) values.push_back(bucket->range(tag).mean());
  return values;
}

std::vector<double> mean_steps(const Buckets& buckets) {
  std::vector<double> steps;
  for (const auto* bucket : buckets) steps.push_back(bucket->steps.mean());
  return steps;
}

PlotLine line_of(const Buckets& buckets, int tag, size_t points) {
  PlotLine line{points};
  bool several = false;
  for (size_t i = 0; i < buckets.size(); ++i) {
    const ValueRange& range = buckets[i]->range(tag);
    line.mean.push_back(range.mean());
    line.low.push_back(range.smallest);
    line.high.push_back(range.largest);
    several |= range.count > 1;
    if (range.non_finite > 0) line.broken.push_back(i);
    if (tag == kGradNormTag && buckets[i]->range(kClippedTag).largest > 0) line.marked.push_back(i);
  }
  if (!several) line.low.clear(), line.high.clear();
  return line;
}

struct Builder {
  const std::vector<ReportRun>& runs;
  ReportData data{};

  // A run has tables of current rows by kind, then of superseded ones. The index of the PlotPoints of one:
  static constexpr size_t kTables = 2 * kRowKinds;
  static size_t points_of(size_t run, size_t table) { return run * kTables + table; }

  static const StepBuckets& table_of(const ReportRun& run, size_t table) {
    const auto kind = static_cast<RowKind>(table % kRowKinds);
    return table < kRowKinds ? run.history.current(kind) : run.history.superseded(kind);
  }

  // Superseded buckets get gaps, so that no line joins the steps of two restarts.
  static Buckets in_order(const ReportRun& run, size_t table) {
    Buckets buckets;
    for (const auto& [index, bucket] : table_of(run, table).buckets()) buckets.push_back(&bucket);
    return table < kRowKinds ? buckets : with_gaps(buckets);
  }

  void add_points() {
    for (size_t run = 0; run < runs.size(); ++run) {
      const RunHistory& history = runs[run].history;
      const auto training = in_order(runs[run], static_cast<size_t>(RowKind::kTraining));
      const std::vector<double> steps = mean_steps(training), tokens = means(training, kTokensTag);
      for (size_t table = 0; table < kTables; ++table) {
        const Buckets buckets = in_order(runs[run], table);
        PlotPoints points{static_cast<int>(run),
                          table >= kRowKinds,
                          {mean_steps(buckets), means(buckets, kTokensTag), means(buckets, kTimeTag)}};
        for (size_t i = 0; i < buckets.size(); ++i) {
          double& x = points.x[kTokensAxis][i];  // validations and events do not say how many were seen
          if (!std::isfinite(x)) x = interpolate(steps, tokens, points.x[kStepAxis][i]);
          points.x[kTimeAxis][i] -= history.first_time();
        }
        data.points.push_back(std::move(points));
      }
      const std::vector<Attempt>& attempts = history.attempts();
      for (size_t i = 0; i < std::min(attempts.size(), kMaxMarks); ++i) {
        if (i + 1 == history.attempt_count()) break;  // the first start is no restart
        const auto step = static_cast<double>(attempts[i].first_step);
        data.marks.push_back(
            {static_cast<int>(run),
             {step, interpolate(steps, tokens, step), attempts[i].first_time - history.first_time()}});
      }
    }
  }

  // Time in a unit that suits the longest run.
  void add_axes() {
    double longest = 0;
    for (const ReportRun& run : runs)
      longest = std::max(longest, run.history.last_time() - run.history.first_time());
    const TimeUnit unit = time_unit(longest);
    for (PlotMark& mark : data.marks) mark.x[kTimeAxis] /= unit.seconds;
    for (PlotPoints& points : data.points)
      for (double& time : points.x[kTimeAxis]) time /= unit.seconds;
    data.axes[kStepAxis].name = "step";
    data.axes[kTokensAxis].name = "tokens seen";
    data.axes[kTimeAxis].name = std::string(unit.name) + " since the run's first line";
    for (size_t axis = 0; axis < kPlotAxes; ++axis) {
      Interval all = Interval::empty();
      for (const PlotPoints& points : data.points)
        for (const double x : points.x[axis])
          if (std::isfinite(x)) all.extend_to(x);
      if (axis == kStepAxis)  // a point is in the middle of its steps
        for (const ReportRun& run : runs)
          for (size_t table = 0; table < kTables; ++table)
            for (const auto& [index, bucket] : table_of(run, table).buckets())
              all.high = std::max(all.high, bucket.steps.largest);
      if (all.is_empty()) all = {0, 1};
      const double span = all.high - all.low;
      if (all.low < 0.25 * all.high) all.low = 0;
      data.axes[axis].interval = span > 0 ? all : Interval{all.low - 1, all.high + 1};
    }
  }

  static void add_reference(Plot& plot, double value) {
    const auto same = [&](double other) { return std::abs(other - value) <= 0.005 * value; };
    if (std::isfinite(value) && value > 0 && plot.references.size() < kMaxReferences &&
        std::ranges::none_of(plot.references, same))
      plot.references.push_back(value);
  }

  // A setting of the starts, or the memory of which the newest row has a share: each different value once.
  void add_references(Plot& plot, const char* reference) const {
    plot.reference = reference;
    for (const ReportRun& run : runs) {
      for (const RunStart& start : run.starts.starts)
        add_reference(plot, start.number(plot.reference).value_or(0));
      if (plot.reference != kDeviceMemory) continue;
      const MetricRow* row = run.history.newest(RowKind::kTraining);
      const double gib = run.value(row, "memory/max_reserved(GiB)").value_or(0);
      const double share = run.value(row, "memory/max_reserved(%)").value_or(0) / 100;
      add_reference(plot, std::round(gib / share * 10) / 10);
    }
  }

  // Superseded lines first, so that the current ones are drawn over them.
  Plot tag_plot(const PlotSpec& spec) const {
    Plot plot{.title = spec.title,
              .unit = spec.unit,
              .from_zero = spec.axis == kFromZero,
              .noisy = spec.curve == kNoisy};
    add_references(plot, spec.reference);
    for (const size_t older : {size_t{kRowKinds}, size_t{0}}) {
      for (size_t run = 0; run < runs.size(); ++run) {
        const auto tag = tag_number(runs[run], spec.tag);
        const size_t table = older + static_cast<size_t>(spec.kind);
        if (tag && table_of(runs[run], table).has(*tag))
          plot.lines.push_back(line_of(in_order(runs[run], table), *tag, points_of(run, table)));
      }
    }
    return plot;
  }

  Plot step_plot() const {
    Plot plot{.title = "Progress", .unit = "step over the time", .from_zero = true, .over_time = true};
    add_references(plot, "training.steps");
    for (const size_t table : {size_t{kRowKinds}, size_t{0}}) {
      for (size_t run = 0; run < runs.size(); ++run) {
        const Buckets buckets = in_order(runs[run], table);
        if (!buckets.empty()) plot.lines.push_back({points_of(run, table), mean_steps(buckets)});
      }
    }
    return plot;
  }

  void add_plots() {
    std::set<std::string> done(std::begin(kNotPlotted), std::end(kNotPlotted));
    for (const PlotSpec& spec : kPlots) {
      done.insert(spec.tag);
      Plot plot = tag_plot(spec);
      if (!plot.lines.empty()) data.plots.push_back(std::move(plot));
    }
    if (Plot plot = step_plot(); !plot.lines.empty()) data.plots.push_back(std::move(plot));
    for (const ReportRun& run : runs) {
      for (const std::string& tag : run.tags) {
        if (!done.insert(tag).second || tag.starts_with("start.") || tag.starts_with("end.")) continue;
        for (const RowKind kind : {RowKind::kTraining, RowKind::kValidation, RowKind::kEvent}) {
          Plot plot = tag_plot(
              {tag.c_str(), "", kind, tag.c_str(), kFitted, kind == RowKind::kTraining ? kNoisy : kSmooth});
          const Interval values = values_of(plot);
          if (plot.lines.empty() || (values.low == 0 && values.high == 0)) continue;
          if (data.more_plots.size() < kMaxMorePlots)
            data.more_plots.push_back(std::move(plot));
          else
            ++data.plots_left_out;
        }
      }
    }
  }
};

}  // namespace

std::optional<double> ReportRun::value(const MetricRow* row, const std::string& tag) const {
  const auto number = tag_number(*this, tag);
  return row == nullptr || !number ? std::nullopt : row->value(*number);
}

double interpolate(const std::vector<double>& xs, const std::vector<double>& ys, double x) {
  if (xs.empty() || std::isnan(x)) return NAN;
  const auto after = static_cast<size_t>(std::ranges::lower_bound(xs, x) - xs.begin());
  if (after == 0) return ys.front();
  if (after == xs.size()) return ys.back();
  const double part = (x - xs[after - 1]) / (xs[after] - xs[after - 1]);
  return ys[after - 1] + part * (ys[after] - ys[after - 1]);
}

ReportData report_data(const std::vector<ReportRun>& runs) {
  Builder builder{runs};
  builder.add_points();
  builder.add_axes();
  builder.add_plots();
  return std::move(builder.data);
}

}  // namespace hyperion::report
