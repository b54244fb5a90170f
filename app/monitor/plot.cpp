#include "app/monitor/plot.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "base/utf8.h"

namespace hyperion::monitor {
namespace {

// A Canvas has dots, several in each character: 2 x 4 in braille, 1 x 2 in ASCII.
class Canvas {
 public:
  Canvas(int columns, int rows, bool utf8)
      : columns_(columns), rows_(rows), utf8_(utf8), cells_(static_cast<size_t>(columns * rows)) {}

  int width() const { return columns_ * (utf8_ ? 2 : 1); }
  int height() const { return rows_ * (utf8_ ? 4 : 2); }

  // Dots outside of the canvas are left out. y counts downwards.
  void set(int x, int y) {
    if (x < 0 || y < 0 || x >= width() || y >= height()) return;
    constexpr std::array<std::array<int, 4>, 2> kBraille = {
        {{0x01, 0x02, 0x04, 0x40}, {0x08, 0x10, 0x20, 0x80}}};
    if (utf8_)
      cell(x / 2, y / 4) |= kBraille[static_cast<size_t>(x % 2)][static_cast<size_t>(y % 4)];
    else
      cell(x, y / 2) |= 1 << y % 2;
  }

  void draw_line(int x0, int y0, int x1, int y1) {
    const int length = std::max({std::abs(x1 - x0), std::abs(y1 - y0), 1});
    for (int i = 0; i <= length; ++i)
      set(static_cast<int>(std::lround(x0 + static_cast<double>(x1 - x0) * i / length)),
          static_cast<int>(std::lround(y0 + static_cast<double>(y1 - y0) * i / length)));
  }

  void mark_broken(int x) { cell(std::clamp(x / (utf8_ ? 2 : 1), 0, columns_ - 1), 0) = kBroken; }

  TextLine row(int number) const {
    TextLine line;
    for (int column = 0; column < columns_; ++column) {
      const int dots = cells_[static_cast<size_t>(number * columns_ + column)];
      const Tone tone = dots == kBroken ? Tone::kBad : dots == 0 ? Tone::kPlain : Tone::kCurve;
      if (line.empty() || line.back().tone != tone) line.push_back({"", tone});
      if (dots == kBroken)
        line.back().text += 'x';
      else if (dots == 0 || !utf8_)
        line.back().text += " '.:"[dots];
      else
        append_utf8(line.back().text, 0x2800 + static_cast<char32_t>(dots));
    }
    return line;
  }

 private:
  static constexpr int kBroken = -1;
  int& cell(int column, int row) { return cells_[static_cast<size_t>(row * columns_ + column)]; }

  int columns_, rows_;
  bool utf8_;
  std::vector<int> cells_;
};

// Maps values to dots 0 to `dots` - 1.
struct DotScale {
  report::Interval interval;
  int dots;
  bool log = false, downwards = false;

  int operator()(double value) const {
    const auto at = [&](double v) { return log ? std::log(v) : v; };
    const double part = (at(value) - at(interval.low)) / (at(interval.high) - at(interval.low));
    const double dot = std::clamp(downwards ? 1 - part : part, -1.0, 2.0) * (dots - 1);
    return static_cast<int>(std::lround(dot));
  }
};

bool is_current(const report::PlotLine& line, const std::vector<report::PlotPoints>& points) {
  return !points.at(line.points).superseded;
}

report::Interval current_values(const report::Plot& plot, const std::vector<report::PlotPoints>& points) {
  report::Interval all = report::Interval::empty();
  for (const report::PlotLine& line : plot.lines)
    for (const double value : is_current(line, points) ? line.mean : std::vector<double>())
      if (std::isfinite(value)) all.extend_to(value);
  return all;
}

void draw_curve(Canvas& canvas, const report::PlotLine& line, const std::vector<double>& steps,
                const DotScale& across, const DotScale& up) {
  int x0 = 0, y0 = 0;
  bool joined = false;
  for (size_t i = 0; i < line.mean.size(); ++i) {
    if (!std::isfinite(line.mean[i]) || !std::isfinite(steps[i])) {
      joined = false;
      continue;
    }
    const int x = across(steps[i]), y = up(line.mean[i]);
    canvas.draw_line(joined ? x0 : x, joined ? y0 : y, x, y);
    x0 = x, y0 = y, joined = true;
  }
  for (const size_t point : line.broken)
    if (std::isfinite(steps[point])) canvas.mark_broken(across(steps[point]));
}

// The labels of the steps under a plot, each centred at its step as far as there is room.
std::string step_labels(report::Interval steps, int columns) {
  std::string labels(static_cast<size_t>(columns), ' ');
  const DotScale across{steps, columns};
  int free_from = 0;
  for (const report::Tick& tick : report::linear_ticks(steps, std::max(2, columns / 12))) {
    const auto length = static_cast<int>(tick.label.size());
    const int at = std::clamp(across(tick.value) - length / 2, 0, std::max(columns - length, 0));
    if (at < free_from || at + length > columns) continue;
    labels.replace(static_cast<size_t>(at), tick.label.size(), tick.label);
    free_from = at + length + 2;
  }
  return labels;
}

std::string newest_value(const report::Plot& plot, const std::vector<report::PlotPoints>& points) {
  for (const report::PlotLine& line : plot.lines) {
    if (!is_current(line, points)) continue;
    for (size_t i = line.mean.size(); i-- > 0;)
      if (std::isfinite(line.mean[i]))
        return std::abs(line.mean[i]) < 1e3 ? fmt::format("{:.5g}", line.mean[i])
                                            : report::number_text(std::round(line.mean[i]));
  }
  return "";
}

}  // namespace

std::vector<TextLine> draw_plot(const report::Plot& plot, const std::vector<report::PlotPoints>& points,
                                report::Interval steps, PlotSize size, bool utf8) {
  report::Interval values = current_values(plot, points);
  if (values.is_empty()) values = {0, 1};
  const bool log = !plot.from_zero && report::wants_log_scale(values);
  const report::Interval interval =
      log ? report::log_interval(values) : report::linear_interval(values, plot.from_zero);
  const int rows = size.rows - 2;
  const auto ticks = log ? report::log_ticks(interval, std::max(2, rows / 2))
                         : report::linear_ticks(interval, std::max(2, rows / 2));
  size_t label_width = 1;
  for (const report::Tick& tick : ticks) label_width = std::max(label_width, tick.label.size());
  const int left = static_cast<int>(label_width) + 2;
  Canvas canvas(std::max(size.columns - left, 1), rows, utf8);
  const DotScale up{interval, canvas.height(), log, /*downwards=*/true};
  for (const report::PlotLine& line : plot.lines)
    if (is_current(line, points))
      draw_curve(canvas, line, points[line.points].x[report::kStepAxis], {steps, canvas.width()}, up);

  const std::string newest = newest_value(plot, points);
  TextLine title = {{safe_text(plot.title, utf8), Tone::kStrong}};
  if (!newest.empty()) title.push_back({"  " + newest});
  const std::string unit =
      safe_text(plot.unit.substr(0, plot.unit.find(';')), utf8);  // then: marks of a page
  if (!unit.empty() && columns_of(title) + 2 + columns_of(unit) <= size.columns)
    title.push_back({"  " + unit, Tone::kFaint});
  std::vector<TextLine> lines = {cut(title, size.columns)};
  const int dots_of_row = canvas.height() / rows;
  for (int row = 0; row < rows; ++row) {
    std::string label;
    for (const report::Tick& tick : ticks)
      if (up(tick.value) / dots_of_row == row) label = tick.label;
    const char* edge = !utf8 ? (label.empty() ? "|" : "+") : label.empty() ? "\u2502" : "\u2524";
    TextLine line = {{fmt::format("{:>{}} {}", label, label_width, edge), Tone::kFaint}};
    const TextLine curve = canvas.row(row);
    line.insert(line.end(), curve.begin(), curve.end());
    lines.push_back(cut(line, size.columns));
  }
  lines.push_back({{std::string(static_cast<size_t>(left), ' ') + step_labels(steps, size.columns - left),
                    Tone::kFaint}});
  return lines;
}

}  // namespace hyperion::monitor
