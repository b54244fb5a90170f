#include "app/plan/plan_page.h"

#include <algorithm>

#include <fmt/format.h>

#include "app/report/html.h"
#include "app/report/page.h"
#include "app/report/plot.h"
#include "base/counted.h"

namespace hyperion::app {
namespace {

using report::html_text, report::PlotFrame;
using trainer::Family;

struct Segment {
  double value = 0;
  std::string text;  // shown under the pointer
};

// A plan's stacked segments, in the order of the legend.
struct Bar {
  std::string name{}, value{};
  std::vector<Segment> segments{};
};

std::string legend(const std::vector<std::string>& names) {
  std::string html = "<p class=\"note\">";
  for (size_t i = 0; i < names.size(); ++i)
    html += fmt::format(R"(<span class="key"><span class="swatch r{}"></span>{}</span> )", i,
                        html_text(names[i]));
  return html + "</p>";
}

// Draws one bar under the other, from 0 to `longest`, with a dashed line at `limit` if it is above 0.
std::string bars_svg(const std::string& title, const std::vector<Bar>& bars, double longest, double limit,
                     const char* axis) {
  constexpr double kLeft = 4, kRight = PlotFrame::kRight, kRow = 40, kHeight = 16, kTop = 4;
  const report::Interval interval = report::linear_interval({0, longest}, /*from_zero=*/true);
  const auto across = [&](double value) { return kLeft + value / interval.high * (kRight - kLeft); };
  const double bottom = kTop + kRow * static_cast<double>(bars.size());
  std::string svg =
      fmt::format(R"(<svg viewBox="0 0 {} {}" role="img" aria-label="{}" class="plot"><g class="x">)",
                  PlotFrame::kWidth, bottom + 42, html_text(title));
  for (const report::Tick& tick : report::linear_ticks(interval, 6))
    svg += fmt::format(R"(<path class="grid" d="M{0:.1f},{1}V{2}"/><text x="{0:.1f}" y="{3}">{4}</text>)",
                       across(tick.value), kTop, bottom, bottom + 17, html_text(tick.label));
  svg +=
      fmt::format(R"(<text x="{}" y="{}">{}</text></g>)", (kLeft + kRight) / 2, bottom + 34, html_text(axis));
  double top = kTop;
  for (const Bar& bar : bars) {
    svg += fmt::format(R"(<text x="{0}" y="{2}">{3}</text><text class="value" x="{1}" y="{2}">{4}</text>)",
                       kLeft, kRight, top + 14, html_text(bar.name), html_text(bar.value));
    double begin = 0;
    for (size_t i = 0; i < bar.segments.size(); ++i) {
      const Segment& segment = bar.segments[i];
      if (segment.value <= 0) continue;
      svg += fmt::format(
          R"(<rect class="r{}" x="{:.1f}" y="{}" width="{:.1f}" height="{}"><title>{}</title></rect>)", i,
          across(begin), top + 19, across(begin + segment.value) - across(begin), kHeight,
          html_text(segment.text));
      begin += segment.value;
    }
    top += kRow;
  }
  if (limit > 0)
    svg += fmt::format(R"(<path class="reference" d="M{:.1f},{}V{}"/>)", across(limit), kTop, bottom);
  return svg + "</svg>";
}

std::string figure(const std::string& title, const std::string& unit, const std::string& content) {
  return fmt::format("<figure><figcaption>{} <small>{}</small></figcaption>{}</figure>\n", html_text(title),
                     html_text(unit), content);
}

// Draws a bar for each plan. `bar_of` returns its value and segments.
template <typename F>
std::string bars_figure(const SearchResult& result, const std::string& title, const std::string& unit,
                        const std::vector<std::string>& names, double limit, const char* axis, F&& bar_of) {
  std::vector<Bar> bars;
  double longest = limit;
  for (size_t i = 0; i < result.plans.size(); ++i) {
    Bar bar = bar_of(result.plans[i]);
    bar.name =
        fmt::format("{}  {} ({})", i + 1, describe_mesh(result.plans[i]), settings_text(result.plans[i]));
    double sum = 0;
    for (const Segment& segment : bar.segments) sum += segment.value;
    longest = std::max(longest, sum);
    bars.push_back(std::move(bar));
  }
  return figure(title, unit, legend(names) + bars_svg(title, bars, longest, limit, axis));
}

std::string memory_figure(const SearchResult& result, const Hardware& hardware) {
  std::vector<std::string> names;
  for (const PeakPart& part : memory_parts({})) names.emplace_back(part.name);
  const double usable = usable_memory(hardware.card) / kGib;
  return bars_figure(result, "Memory of the fullest rank",
                     fmt::format("GiB; dashed: the {:.1f} that a job may use of {:.1f}", usable,
                                 hardware.card.memory_bytes / kGib),
                     names, usable, "GiB", [](const MeshPlan& plan) {
                       Bar bar{.value = fmt::format("{:.1f} GiB", plan.memory.total() / kGib)};
                       for (const PeakPart& part : memory_parts(plan.memory))
                         bar.segments.push_back({part.bytes / kGib, fmt::format("{}: {:.2f} GiB", part.name,
                                                                                part.bytes / kGib)});
                       return bar;
                     });
}

std::string time_figure(const SearchResult& result) {
  std::vector<TimePart> parts = time_parts();
  parts.push_back({"", "not modelled", {Family::kNotModelled}});
  std::vector<std::string> names;
  for (const TimePart& part : parts) names.emplace_back(part.title);
  return bars_figure(result, "Time of a step", "s, in the middle of the card's constants", names, 0, "s",
                     [&](const MeshPlan& plan) {
                       const trainer::StepTime& time = plan.middle;
                       Bar bar{.value = fmt::format("{:.3g} s", time.total())};
                       for (const TimePart& part : parts) {
                         std::string text;
                         for (const Family family : part.families)
                           if (time.of(family) > 0)
                             text += fmt::format("{}{}: {:.3g} ms, {:.1f} %", text.empty() ? "" : "\n",
                                                 name_of(family), 1e3 * time.of(family),
                                                 100 * time.of(family) / time.total());
                         bar.segments.push_back({part.seconds_of(time), std::move(text)});
                       }
                       return bar;
                     });
}

std::string speed_figure(const std::vector<GpusPlan>& scaling) {
  report::PlotPoints points;
  report::PlotLine predicted, proportional;
  std::string rows;
  const double first =
      scaling.front().plan.speed(scaling.front().plan.middle) / static_cast<double>(scaling.front().gpus);
  for (const auto& [gpus, plan] : scaling) {
    const double speed = plan.speed(plan.middle), ideal = first * static_cast<double>(gpus);
    points.x[report::kStepAxis].push_back(static_cast<double>(gpus));
    predicted.mean.push_back(speed);
    predicted.low.push_back(plan.speed(plan.slow));
    predicted.high.push_back(plan.speed(plan.fast));
    proportional.mean.push_back(ideal);
    rows += fmt::format(
        R"(<tr><td class="number">{}</td><td class="number">{}</td><td class="number">{:.0f} %</td>)"
        "<td>{} ({})</td></tr>",
        format_count(static_cast<uint64_t>(gpus)), three_digits(speed), 100 * speed / ideal,
        html_text(describe_mesh(plan)), html_text(settings_text(plan)));
  }
  report::PlotPoints dashed = points;
  dashed.run = 7;  // the first colour again, dashed
  proportional.points = 1;
  const report::Plot plot{
      .title = "Speed", .unit = "tokens/s", .from_zero = true, .lines = {predicted, proportional}};
  std::array<report::HorizontalAxis, report::kPlotAxes> axes;
  axes[report::kStepAxis] = {"GPUs", {0, points.x[report::kStepAxis].back() * 1.04}};
  return figure("Speed by GPUs", "tokens/s in all, of the fastest plan; the batch of a step stays",
                R"(<p class="note"><span class="key"><span class="swatch r0"></span>predicted; shaded: the )"
                R"(ends of the card's constants</span> <span class="key"><span class="swatch r7"></span>in )"
                "proportion to the fewest GPUs</span></p>" +
                    plot_svg(plot, {points, dashed}, axes, {}, 0) +
                    R"(<table><tr><th>GPUs</th><th>tokens/s</th><th>of proportional</th><th>plan</th></tr>)" +
                    rows + "</table>");
}

constexpr const char* kStyle = R"css(
svg.plot{cursor:default}svg rect{fill:var(--c);stroke:var(--card);stroke-width:.6}svg .value{text-anchor:end}
svg>text{fill:var(--text)}html:not(.script) .note span{display:inline-block}.key{margin-right:14px}
span.swatch{height:0}html:not(.script) .note .swatch{display:inline-block}
.plots{align-items:start}pre{white-space:pre;max-height:none}
)css";

}  // namespace

std::string plan_page(const SearchResult& result, const PlanFacts& facts, const Hardware& hardware,
                      const std::string& table, const std::vector<GpusPlan>& scaling) {
  const std::string title =
      fmt::format("Plan: {} on {} x {}", facts.model, format_count(static_cast<uint64_t>(hardware.gpus)),
                  hardware.card.name);
  return fmt::format(
             R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{0}</title>
<style>{1}{2}</style></head>
<body>
<header><h1>{0}</h1><p>predicted, not measured: no GPU has confirmed the card's constants</p></header>
<div class="plots">
)",
             html_text(title), report::kPageStyle, kStyle) +
         memory_figure(result, hardware) + time_figure(result) +
         (scaling.size() > 1 ? speed_figure(scaling) : "") +
         fmt::format(
             "</div>\n<details open><summary>Table</summary><pre>{}</pre></details>\n</body></html>\n",
             html_text(table, 100'000));
}

}  // namespace hyperion::app
