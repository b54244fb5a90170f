#include "app/report/plot.h"

#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "app/report/html.h"

namespace hyperion::report {
namespace {

using Frame = PlotFrame;

struct Scale {
  Interval interval{};
  double from = 0, to = 1;  // pixels of low and high
  bool log = false;

  // NaN where the value is not on the axis
  double operator()(double value) const {
    // differences of logarithms: the ratio of the largest to the smallest double is infinite
    const double part =
        log ? (std::log(value) - std::log(interval.low)) / (std::log(interval.high) - std::log(interval.low))
            : (value - interval.low) / (interval.high - interval.low);
    return std::isfinite(part) ? from + part * (to - from) : NAN;
  }
};

Scale horizontal(const Interval& interval) {
  return {interval, Frame::kLeft, Frame::kRight};
}

struct Paths {
  std::string band, mean, dots, broken, marked;
};

// Gaps stay gaps; a value between two gaps is a dot, and so are all of a line with few of them.
Paths paths_of(const PlotLine& line, const std::vector<double>& x, const Scale& across, const Scale& up) {
  Paths paths;
  const auto is_finite_point = [&](size_t i) {
    return i < line.mean.size() && std::isfinite(across(x[i])) && std::isfinite(up(line.mean[i]));
  };
  const bool few = line.mean.size() <= 40;
  for (size_t i = 0; i < line.mean.size(); ++i) {
    if (!is_finite_point(i)) continue;
    const bool starts = i == 0 || !is_finite_point(i - 1), ends = !is_finite_point(i + 1);
    const double px = across(x[i]), py = up(line.mean[i]);
    paths.mean += fmt::format("{}{:.1f},{:.1f}", starts ? 'M' : 'L', px, py);
    if (few || (starts && ends)) paths.dots += fmt::format("M{:.1f},{:.1f}h0", px, py);
    if (!starts || line.low.empty()) continue;
    std::string back;
    size_t at = i;
    for (; is_finite_point(at); ++at) {
      const double low = std::isfinite(up(line.low[at])) ? up(line.low[at]) : up.from;
      paths.band += fmt::format("{}{:.1f},{:.1f}", at == i ? 'M' : 'L', across(x[at]), up(line.high[at]));
      back.insert(0, fmt::format("L{:.1f},{:.1f}", across(x[at]), low));
    }
    paths.band += back + "Z";
  }
  for (const size_t i : line.broken) {
    const double px = across(x[i]);
    if (std::isfinite(px))
      paths.broken += fmt::format("M{:.1f},{:.1f}l6,6m0,-6l-6,6", px - 3, Frame::kTop + 2);
  }
  for (const size_t i : line.marked) {
    const double px = across(x[i]), py = up(line.high.empty() ? line.mean[i] : line.high[i]);
    if (std::isfinite(px) && std::isfinite(py))
      paths.marked += fmt::format("M{:.1f},{:.1f}a2,2 0 1 0 4,0a2,2 0 1 0 -4,0", px - 2, py);
  }
  return paths;
}

std::string vertical_axis(const Scale& up, const std::vector<Tick>& ticks) {
  std::string svg = "<g class=\"y\">";
  for (const Tick& tick : ticks) {
    const double y = up(tick.value);
    svg += fmt::format("<path class=\"grid\" d=\"M{},{:.1f}H{}\"/><text x=\"{}\" y=\"{:.1f}\">{}</text>",
                       Frame::kLeft, y, Frame::kRight, Frame::kLeft - 7, y + 4, html_text(tick.label));
  }
  return svg + "</g>";
}

std::string horizontal_axis(const HorizontalAxis& axis) {
  const Scale across = horizontal(axis.interval);
  std::string svg = "<g class=\"x\">";
  for (const Tick& tick : linear_ticks(axis.interval, 6)) {
    const double x = across(tick.value);
    svg += fmt::format("<path class=\"tick\" d=\"M{:.1f},{}v5\"/><text x=\"{:.1f}\" y=\"{}\">{}</text>", x,
                       Frame::kBottom, x, Frame::kBottom + 18, html_text(tick.label));
  }
  return svg + fmt::format("<text x=\"{}\" y=\"{}\">{}</text></g>", (Frame::kLeft + Frame::kRight) / 2,
                           Frame::kBottom + 35, html_text(axis.name));
}

}  // namespace

Interval values_of(const Plot& plot) {
  Interval all = Interval::empty();
  for (const PlotLine& line : plot.lines)
    for (const auto* values : {&line.mean, &line.low, &line.high})
      for (const double value : *values)
        if (std::isfinite(value)) all.extend_to(value);
  return all;
}

std::string plot_svg(const Plot& plot, const std::vector<PlotPoints>& points,
                     const std::array<HorizontalAxis, kPlotAxes>& axes, const std::vector<PlotMark>& marks,
                     size_t first_line) {
  Interval data = values_of(plot);
  if (data.is_empty()) data = {0, 1};  // only values that are not finite
  const bool log = !plot.from_zero && wants_log_scale(data), positive = data.low > 0;
  const double farthest = kFarthestReference * data.high;
  for (const double value : plot.references)
    if (value <= farthest) data.extend_to(value);
  const Interval interval = log ? log_interval(data) : linear_interval(data, plot.from_zero);
  const Scale up{interval, Frame::kBottom, Frame::kTop, log};
  const size_t axis = plot.over_time ? kTimeAxis : kStepAxis;
  const Scale across = horizontal(axes[axis].interval);

  std::string svg = fmt::format(
      R"(<svg viewBox="0 0 {} {}" role="img" aria-label="{}" class="plot{}"{}{}{}{}>)", Frame::kWidth,
      Frame::kHeight, html_text(plot.title), log ? " log" : "", positive ? R"( data-positive="")" : "",
      plot.from_zero ? R"( data-zero="")" : "", plot.noisy ? R"( data-noisy="")" : "",
      plot.over_time ? fmt::format(R"( data-axis="{}")", axis) : "");
  svg += vertical_axis(up, log ? log_ticks(interval, 6) : linear_ticks(interval, 5));
  svg += horizontal_axis(axes[axis]);
  svg += fmt::format(R"(<path class="frame" d="M{},{}V{}H{}"/>)", Frame::kLeft, Frame::kTop, Frame::kBottom,
                     Frame::kRight);
  // An inner picture cuts off what lies outside of the axes.
  constexpr double kMargin = 4;
  svg += fmt::format(R"(<svg x="{0}" y="{1}" width="{2}" height="{3}" viewBox="{0} {1} {2} {3}">)",
                     Frame::kLeft - kMargin, Frame::kTop - kMargin,
                     Frame::kRight - Frame::kLeft + 2 * kMargin, Frame::kBottom - Frame::kTop + 2 * kMargin);
  for (const PlotMark& mark : marks) {
    const double x = across(mark.x[axis]);
    svg += fmt::format(R"(<path class="restart r{}" d="{}"/>)", mark.run,
                       std::isfinite(x) ? fmt::format("M{:.1f},{}V{}", x, Frame::kTop, Frame::kBottom) : "");
  }
  for (const double value : plot.references) {
    const double y = up(value);
    svg += fmt::format(R"(<path class="reference" data-value="{}" d="M{},{:.1f}H{}"/>)", value, Frame::kLeft,
                       std::isfinite(y) ? y : -Frame::kHeight, Frame::kRight);
  }
  for (size_t i = 0; i < plot.lines.size(); ++i) {
    const PlotLine& line = plot.lines[i];
    const PlotPoints& at = points[line.points];
    const Paths paths = paths_of(line, at.x[axis], across, up);
    svg +=
        fmt::format(R"(<g class="line r{}{}" data-line="{}"><path class="band" d="{}"/><path class="raw"/>)"
                    R"(<path class="mean" d="{}"/><path class="dots" d="{}"/><path class="broken" d="{}"/>)"
                    R"(<path class="marked" d="{}"/></g>)",
                    at.run, at.superseded ? " superseded" : "", first_line + i, paths.band, paths.mean,
                    paths.dots, paths.broken, paths.marked);
  }
  return svg + "</svg><path class=\"cursor\"/><path class=\"selection\"/></svg>";
}

std::string json_numbers(const std::vector<double>& values) {
  std::vector<std::string> texts;
  for (const double value : values) {
    const bool integer = value == std::floor(value) && std::abs(value) < 1e15;
    texts.push_back(!std::isfinite(value) ? "null"
                                          : fmt::format(fmt::runtime(integer ? "{:.0f}" : "{:.7g}"), value));
  }
  return fmt::format("[{}]", fmt::join(texts, ","));
}

std::string lines_json(const Plot& plot) {
  std::vector<std::string> lines;
  for (const PlotLine& line : plot.lines) {
    std::string json = fmt::format(R"({{"points":{},"mean":{})", line.points, json_numbers(line.mean));
    if (!line.low.empty())
      json += fmt::format(",\"low\":{},\"high\":{}", json_numbers(line.low), json_numbers(line.high));
    lines.push_back(json + fmt::format(R"(,"broken":[{}],"marked":[{}]}})", fmt::join(line.broken, ","),
                                       fmt::join(line.marked, ",")));
  }
  return fmt::format("{}", fmt::join(lines, ",\n"));
}

}  // namespace hyperion::report
