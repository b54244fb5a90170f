#include "app/monitor/plot.h"

#include <catch2/catch.hpp>

#include "run_files.h"

namespace hyperion::monitor {

namespace {
report::Plot plot_of(std::vector<double> values, bool from_zero = false) {
  return {.title = "Loss",
          .unit = "mean",
          .from_zero = from_zero,
          .lines = {{.points = 0, .mean = std::move(values)}}};
}
std::vector<report::PlotPoints> at_steps(std::vector<double> steps) {
  return {{0, false, {std::move(steps)}}};
}
std::vector<std::string> drawn(const report::Plot& plot, const std::vector<report::PlotPoints>& points,
                               report::Interval steps, PlotSize size, bool utf8) {
  std::vector<std::string> text;
  for (const TextLine& line : draw_plot(plot, points, steps, size, utf8)) text.push_back(plain(line));
  return text;
}
}  // namespace

TEST_CASE("A curve goes from corner to corner, in ASCII and in braille") {
  const auto points = at_steps({0, 10});
  CHECK(drawn(plot_of({0, 1}, true), points, {0, 10}, {30, 6}, false) ==
        std::vector<std::string>{"Loss  1  mean", "1 +                     ....''",
                                 "  |              ...''''", "  |      ....''''", "0 +..''''",
                                 "   0            5           10"});
  const auto braille = drawn(plot_of({0, 1}, true), points, {0, 10}, {30, 6}, true);
  CHECK(braille[4].starts_with("0 \u2524\u28C0"));
}

TEST_CASE("Values that are not finite are crosses at the upper edge, and the curve has a gap there") {
  report::Plot plot = plot_of({1, NAN, 1});
  plot.lines[0].broken = {1};
  const auto text = drawn(plot, at_steps({0, 5, 10}), {0, 10}, {40, 7}, false);
  CHECK(text[1].find('x') != std::string::npos);
  CHECK(text[0].starts_with("Loss  1"));
}

TEST_CASE("Any values and sizes give as many lines and columns as there is room for") {
  for (const std::vector<double>& values : std::vector<std::vector<double>>{
           {}, {NAN}, {1}, {1e300, -1e300}, {5e-324, 1e-300}, {1, 1.7e308}, {3, 3, 3}})
    for (const PlotSize size : {PlotSize{28, 5}, PlotSize{200, 22}, PlotSize{40, 8}})
      for (const bool utf8 : {false, true}) {
        std::vector<double> steps;
        for (size_t i = 0; i < values.size(); ++i) steps.push_back(static_cast<double>(i));
        const auto lines = draw_plot(plot_of(values), at_steps(steps), {0, 9e15}, size, utf8);
        CHECK(static_cast<int>(lines.size()) == size.rows);
        for (const TextLine& line : lines) CHECK(columns_of(line) <= size.columns);
      }
}

}  // namespace hyperion::monitor
