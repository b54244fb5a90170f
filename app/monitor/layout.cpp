#include "app/monitor/layout.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include <fmt/format.h>

#include "app/monitor/plot.h"
#include "app/monitor/summary.h"
#include "app/report/report_data.h"

namespace hyperion::monitor {
namespace {

constexpr int kLabelColumns = 11;  // of a fact, with the blank behind it
constexpr int kPlotRows = 7;       // rows of the plots for which facts are left out
constexpr int kMaxPlotRows = 22;
constexpr int kLogPlotRows = 12;

// Titles of report_data() in the order of the screen; other plots come after them.
constexpr std::array kFirstPlots = {
    "Loss",           "Throughput",      "Gradient norm", "Step time",  "Validation loss",
    "Busiest expert", "Pipeline bubble", "Slowest rank",  "Peak memory"};

TextLine title_line(const MonitoredRun& state, const Summary& summary, const View& view) {
  const int room = std::max(view.columns - columns_of(summary.condition.text) - 2, view.columns / 3);
  std::string name = safe_text(state.run().name, view.utf8, 1000);
  TextLine line = cut({{name, Tone::kStrong}}, room);
  const int gap = view.columns - columns_of(line) - columns_of(summary.condition.text);
  line.push_back({std::string(static_cast<size_t>(std::max(gap, 2)), ' ')});
  line.push_back(summary.condition);
  return cut(line, view.columns);
}

// A bar of `columns` for the share that is done, in eighths of a column where there are such characters.
Span progress_bar(double done, int columns, bool utf8) {
  const auto eighths = static_cast<int>(std::floor(done * columns * 8));
  std::string bar;
  for (int i = 0; i < columns; ++i) {
    const int here = std::clamp(eighths - 8 * i, 0, 8);
    if (!utf8)
      bar += here == 8 ? '#' : '.';
    else if (here == 8)
      bar += "\u2588";
    else if (here == 0)
      bar += "\u2591";
    else
      bar +=
          std::array{
              "\u258F", "\u258E", "\u258D", "\u258C", "\u258B", "\u258A", "\u2589"}[static_cast<size_t>(here -
                                                                                                        1)];
  }
  return {bar, Tone::kCurve};
}

// The parts of a fact that fit; the first one is cut.
TextLine fact_line(const Fact& fact, double progress, const View& view) {
  TextLine line = {{fmt::format("{:<{}}", fact.label, kLabelColumns), Tone::kFaint}};
  for (size_t i = 0; i < fact.parts.size(); ++i) {
    const Span& part = fact.parts[i];
    const int gap = i == 0 ? 0 : 2;
    if (i > 0 && columns_of(line) + gap + columns_of(part.text) > view.columns) break;
    line.push_back({std::string(static_cast<size_t>(gap), ' ')});
    line.push_back(part);
  }
  if (fact.label == "step" && progress >= 0) {
    const int room = std::min(view.columns - columns_of(line) - 2, 40);
    if (room >= 8) {
      line.push_back({"  "});
      line.push_back(progress_bar(progress, room, view.utf8));
    }
  }
  return cut(line, view.columns);
}

// Leaves out the facts of the lowest importance until there are at most `count`.
void keep_facts(std::vector<Fact>& facts, int count) {
  while (static_cast<int>(facts.size()) > std::max(count, 0))
    facts.erase(std::ranges::min_element(facts, {}, &Fact::importance));
}

std::vector<const report::Plot*> ordered_plots(const report::ReportData& data) {
  std::vector<const report::Plot*> plots;
  for (const report::Plot& plot : data.plots)
    if (plot.title != "Progress") plots.push_back(&plot);
  std::ranges::stable_sort(plots, {}, [](const report::Plot* plot) {
    return std::ranges::find(kFirstPlots, plot->title) - kFirstPlots.begin();
  });
  return plots;
}

// A grid of plots that fills `rows`.
std::vector<TextLine> plot_lines(const MonitoredRun& state, const View& view, int rows) {
  std::vector<TextLine> lines;
  if (rows < PlotSize::kMinRows || view.columns < PlotSize::kMinColumns) return lines;
  const report::ReportData data = report::report_data(state.runs);
  const std::vector<const report::Plot*> plots = ordered_plots(data);
  if (plots.empty()) return lines;
  const int across = view.columns < 68 ? 1 : view.columns < 130 ? 2 : view.columns < 210 ? 3 : 4;
  const int wanted = (static_cast<int>(plots.size()) + across - 1) / across;
  const int down = std::clamp(rows / 11, 1, wanted);
  const int gap = 2, columns = (view.columns - gap * (across - 1)) / across;
  const int between = down > 1 ? 1 : 0;
  const PlotSize size{columns, std::min((rows + between) / down - between, kMaxPlotRows)};
  for (int row = 0; row < down; ++row) {
    if (row > 0) lines.emplace_back();
    std::vector<TextLine> band(static_cast<size_t>(size.rows));
    for (int column = 0; column < across; ++column) {
      const auto number = static_cast<size_t>(row * across + column);
      if (number >= plots.size()) break;
      const auto drawn =
          draw_plot(*plots[number], data.points, data.axes[report::kStepAxis].interval, size, view.utf8);
      for (size_t i = 0; i < drawn.size(); ++i) {
        const int used = columns_of(band[i]), left = column * (columns + gap);
        if (left > used) band[i].push_back({std::string(static_cast<size_t>(left - used), ' ')});
        band[i].insert(band[i].end(), drawn[i].begin(), drawn[i].end());
      }
    }
    std::ranges::move(band, std::back_inserter(lines));
  }
  return lines;
}

std::string waiting_text(const MonitoredRun& state, const View& view) {
  return fmt::format("waits for {}/{}{}", safe_text(state.run().name, view.utf8), report::kMetricsName,
                     safe_text(view.hint, view.utf8));
}

}  // namespace

std::vector<TextLine> layout(const MonitoredRun& state, const View& view) {
  const bool log = view.rows == 0;
  if (view.columns < kMinColumns || (!log && view.rows < kMinRows)) {
    const std::string text =
        fmt::format("{}x{} is too small: {}x{} at least", view.columns, view.rows, kMinColumns, kMinRows);
    return {cut({{text}}, view.columns)};
  }
  std::vector<TextLine> lines;
  const int footer = view.footer.empty() ? 0 : 1;
  const auto finish = [&] {
    if (footer == 0) return lines;
    while (static_cast<int>(lines.size()) < view.rows - footer) lines.emplace_back();
    lines.push_back(cut({{view.footer, Tone::kFaint}}, view.columns));
    return lines;
  };
  if (state.waiting) {
    lines.push_back(cut({{waiting_text(state, view)}}, view.columns));
    return finish();
  }

  Summary summary = summarize(state, view.now, view.utf8);
  lines.push_back(title_line(state, summary, view));
  const int room = view.rows - 1 - footer;
  std::vector<Span>& warnings = summary.warnings;
  const auto shown = log ? warnings.size() : static_cast<size_t>(std::max(room / 4, 1));
  const size_t left_out = warnings.size() - std::min(warnings.size(), shown);
  if (left_out > 0) {
    warnings.resize(shown);
    warnings.back().text = fmt::format("{} more; {}", left_out, warnings.back().text);
  }
  int plot_rows = kLogPlotRows;
  if (!log) {
    const int left = room - static_cast<int>(warnings.size());
    const int kept = left >= 2 * kPlotRows ? left - kPlotRows - 1 : left;
    keep_facts(summary.facts, kept);
    plot_rows = left - static_cast<int>(summary.facts.size()) - 1;
  }
  for (const Fact& fact : summary.facts) lines.push_back(fact_line(fact, summary.progress, view));
  for (const Span& warning : warnings)
    lines.push_back(cut({{"! " + warning.text, warning.tone}}, view.columns));
  std::vector<TextLine> plots = plot_lines(state, view, plot_rows);
  if (!plots.empty()) lines.emplace_back();
  std::ranges::move(plots, std::back_inserter(lines));
  return finish();
}

}  // namespace hyperion::monitor
