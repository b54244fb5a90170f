#include "trainer/report/plot.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "trainer/report/html.h"

namespace hyperion::trainer {
namespace {

using Frame = PlotFrame;

struct Scale {
  Interval interval{};
  double from = 0, to = 1;  // pixels of low and high
  bool log = false;

  // NaN where the axis has no place for the value
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
  std::string band, mean, dots, broken;
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
  return paths;
}

std::string vertical_axis(const Scale& up, const std::vector<Tick>& ticks, const char* name) {
  std::string svg = fmt::format("<g class=\"{}\">", name);
  for (const Tick& tick : ticks) {
    const double y = up(tick.value);
    svg += fmt::format("<path class=\"grid\" d=\"M{},{:.1f}H{}\"/><text x=\"{}\" y=\"{:.1f}\">{}</text>",
                       Frame::kLeft, y, Frame::kRight, Frame::kLeft - 7, y + 4, html_text(tick.label));
  }
  return svg + "</g>";
}

std::string horizontal_axis(const HorizontalAxis& axis, int number) {
  const Scale across = horizontal(axis.interval);
  std::string svg = fmt::format("<g class=\"x x{}\">", number);
  for (const Tick& tick : linear_ticks(axis.interval, 6)) {
    const double x = across(tick.value);
    svg += fmt::format("<path class=\"tick\" d=\"M{:.1f},{}v5\"/><text x=\"{:.1f}\" y=\"{}\">{}</text>", x,
                       Frame::kBottom, x, Frame::kBottom + 18, html_text(tick.label));
  }
  return svg + fmt::format("<text class=\"name\" x=\"{}\" y=\"{}\">{}</text></g>",
                           (Frame::kLeft + Frame::kRight) / 2, Frame::kBottom + 35, html_text(axis.name));
}

std::string marks_svg(const std::vector<PlotMark>& marks, const std::array<HorizontalAxis, kPlotAxes>& axes,
                      int only) {
  std::string svg;
  for (const PlotMark& mark : marks) {
    for (int axis = 0; axis < kPlotAxes; ++axis) {
      const double x =
          horizontal(axes[static_cast<size_t>(axis)].interval)(mark.x[static_cast<size_t>(axis)]);
      if (std::isfinite(x) && (only < 0 || only == axis))
        svg += fmt::format("<path class=\"restart r{} x{}\" d=\"M{:.1f},{}V{}\"/>", mark.run, axis, x,
                           Frame::kTop, Frame::kBottom);
    }
  }
  return svg;
}

std::string interval_attribute(const char* name, const Interval& interval) {
  return fmt::format(" data-{}=\"{} {}\"", name, interval.low, interval.high);
}

}  // namespace

Interval values_of(const Plot& plot) {
  Interval all{INFINITY, -INFINITY};
  const auto take = [&](const std::vector<double>& values) {
    for (const double value : values) {
      if (!std::isfinite(value)) continue;
      all = {std::min(all.low, value), std::max(all.high, value)};
    }
  };
  for (const PlotLine& line : plot.lines) {
    take(line.mean);
    take(line.low);
    take(line.high);
  }
  return all.low > all.high ? Interval{1, 0} : all;
}

std::string plot_svg(const Plot& plot, const std::vector<PlotPoints>& points,
                     const std::array<HorizontalAxis, kPlotAxes>& axes, const std::vector<PlotMark>& marks,
                     size_t first_line) {
  Interval data = values_of(plot);
  if (data.low > data.high) data = {0, 1};  // only values that are not finite
  const bool can_log = data.low > 0, log = !plot.from_zero && wants_log_scale(data);
  const Scale linear{linear_interval(data, plot.from_zero), Frame::kBottom, Frame::kTop};
  const Scale logarithmic{can_log ? log_interval(data) : Interval{1, 10}, Frame::kBottom, Frame::kTop, true};
  const int only = plot.over_time ? kTimeAxis : -1;

  std::string svg = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\" class=\"plot{}\"",
                                Frame::kWidth, Frame::kHeight, html_text(plot.title), log ? " log" : "");
  svg += interval_attribute("linear", linear.interval);
  if (can_log) svg += interval_attribute("log", logarithmic.interval);
  if (plot.noisy) svg += " data-noisy=\"\"";
  if (plot.over_time) svg += fmt::format(" data-axis=\"{}\"", only);
  svg += ">";
  svg += vertical_axis(linear, linear_ticks(linear.interval, 5), "y linear");
  if (can_log) svg += vertical_axis(logarithmic, log_ticks(logarithmic.interval, 6), "y logarithmic");
  for (int axis = 0; axis < kPlotAxes; ++axis)
    if (only < 0 || only == axis) svg += horizontal_axis(axes[static_cast<size_t>(axis)], axis);
  svg += fmt::format("<path class=\"frame\" d=\"M{},{}V{}H{}\"/>", Frame::kLeft, Frame::kTop, Frame::kBottom,
                     Frame::kRight);
  svg += marks_svg(marks, axes, only);
  for (size_t i = 0; i < plot.lines.size(); ++i) {
    const PlotLine& line = plot.lines[i];
    const PlotPoints& place = points[line.points];
    const size_t axis = plot.over_time ? kTimeAxis : kStepAxis;
    const Paths paths =
        paths_of(line, place.x[axis], horizontal(axes[axis].interval), log ? logarithmic : linear);
    svg += fmt::format(
        "<g class=\"line r{}{}\" data-line=\"{}\"><path class=\"band\" d=\"{}\"/><path class=\"raw\"/>"
        "<path class=\"mean\" d=\"{}\"/><path class=\"dots\" d=\"{}\"/><path class=\"broken\" d=\"{}\"/></g>",
        place.run, place.superseded ? " superseded" : "", first_line + i, paths.band, paths.mean, paths.dots,
        paths.broken);
  }
  return svg + fmt::format("<path class=\"cursor\" d=\"\"/></svg>");
}

std::string json_numbers(const std::vector<double>& values) {
  std::string json = "[";
  for (const double value : values) {
    if (json.size() > 1) json += ',';
    if (!std::isfinite(value)) {
      json += "null";
    } else if (value == std::floor(value) && std::abs(value) < 1e15) {
      json += fmt::format("{:.0f}", value);
    } else {
      json += fmt::format("{:.7g}", value);
    }
  }
  return json + "]";
}

std::string lines_json(const Plot& plot) {
  std::string json;
  for (const PlotLine& line : plot.lines) {
    json += fmt::format("{}{{\"points\":{},\"mean\":{}", json.empty() ? "" : ",\n", line.points,
                        json_numbers(line.mean));
    if (!line.low.empty())
      json += fmt::format(",\"low\":{},\"high\":{}", json_numbers(line.low), json_numbers(line.high));
    json += fmt::format(",\"broken\":{}}}",
                        json_numbers(std::vector<double>(line.broken.begin(), line.broken.end())));
  }
  return json;
}

}  // namespace hyperion::trainer
