#include "app/report/report_data.h"

#include <algorithm>
#include <cmath>

#include <catch2/catch.hpp>

#include "app/report/page.h"
#include "rows.h"

namespace hyperion::report {
namespace {

ReportRun run_of(const std::vector<std::string>& lines) {
  MetricParser parser;
  ReportRun run;
  run.name = "run";
  run.history = history_of(lines, parser);
  run.tags = parser.tags();
  return run;
}

const Plot* plot_named(const ReportData& data, const std::string& title) {
  const auto found = std::find_if(data.plots.begin(), data.plots.end(),
                                  [&](const Plot& plot) { return plot.title == title; });
  return found == data.plots.end() ? nullptr : &*found;
}

}  // namespace

TEST_CASE("A validation is placed at the tokens that training had seen then") {
  const ReportData data = report_data({run_of({training_line(10, 3, 100, R"(, "n_tokens_seen": 1000)"),
                                               R"({"step": 15, "time": 110, "validation_metrics/loss": 2})",
                                               training_line(20, 2, 160, R"(, "n_tokens_seen": 2000)")})});
  const Plot* plot = plot_named(data, "Validation loss");
  REQUIRE(plot != nullptr);
  REQUIRE(plot->lines.size() == 1);
  const PlotPoints& points = data.points[plot->lines[0].points];
  CHECK(points.x[kStepAxis] == std::vector<double>{15});
  CHECK(points.x[kTokensAxis] == std::vector<double>{1500});
  CHECK(points.x[kTimeAxis] == std::vector<double>{10});
}

TEST_CASE("Plots without a value are left out and other tags get plots of their own") {
  const ReportData data = report_data({run_of({training_line(1, 3, 1, R"(, "my/metric": 4, "zero": 0)")})});
  CHECK(plot_named(data, "Loss") != nullptr);
  CHECK(plot_named(data, "Progress") != nullptr);
  CHECK(plot_named(data, "Validation loss") == nullptr);
  REQUIRE(data.more_plots.size() == 1);
  CHECK(data.more_plots[0].title == "my/metric");
}

TEST_CASE("The gradient norm is drawn with each max_norm and a circle where a step was clipped") {
  ReportRun run =
      run_of({training_line(1, 3, 1, R"(, "grad_norm": 0.5, "grad_norm > training.max_norm": 0)"),
              training_line(2, 3, 2, R"(, "grad_norm": 1.5, "grad_norm > training.max_norm": 1)")});
  for (const char* max_norm : {"1.0", "1.0", "100.0"})
    run.starts.starts.push_back({"start", {{"training.max_norm", max_norm}}, {}});
  const ReportData data = report_data({run});
  const Plot* plot = plot_named(data, "Gradient norm");
  REQUIRE(plot != nullptr);
  CHECK(plot->reference == "training.max_norm");
  CHECK(plot->references == std::vector<double>{1, 100});
  REQUIRE(plot->lines.size() == 1);
  CHECK(plot->lines[0].marked == std::vector<size_t>{1});
  const std::string svg = plot_svg(*plot, data.points, data.axes, data.marks, 0);
  CHECK_THAT(svg, Catch::Contains("class=\"reference\" data-value=\"1\""));
  CHECK_THAT(svg, Catch::Contains(">1.5</text>") && !Catch::Contains(">100</text>"));  // too far for the axis
  CHECK_THAT(report_page({run}, 10), Catch::Contains("50\u00a0% of steps clipped"));
}

TEST_CASE("The peak memory is drawn with the memory of the device") {
  const ReportData data = report_data({run_of(
      {training_line(1, 3, 1, R"x(, "memory/max_reserved(GiB)": 70.2, "memory/max_reserved(%)": 88.7)x")})});
  const Plot* plot = plot_named(data, "Peak memory");
  REQUIRE(plot != nullptr);
  CHECK(plot->references == std::vector<double>{79.1});
}

TEST_CASE("Steps that two restarts made again are not joined by a line") {
  std::vector<std::string> lines;
  int64_t time = 0;
  const auto make = [&](int64_t from, int64_t to) {
    for (int64_t step = from; step <= to; ++step)
      lines.push_back(training_line(step, 1, static_cast<double>(++time)));
  };
  make(1, 20);
  make(11, 110);
  make(101, 120);
  const ReportData data = report_data({run_of(lines)});
  const Plot* plot = plot_named(data, "Loss");
  REQUIRE(plot != nullptr);
  REQUIRE(plot->lines.size() == 2);
  CHECK(data.points[plot->lines[0].points].superseded);
  const std::vector<double>& mean = plot->lines[0].mean;
  REQUIRE(mean.size() == 21);  // 11 to 20, a gap, 101 to 110
  CHECK(std::isnan(mean[10]));
  CHECK(data.marks.size() == 2);
}

TEST_CASE("Values over the whole range of doubles give finite places in the plot") {
  const ReportData data =
      report_data({run_of({training_line(1, 5e-324, 1), training_line(2, 1e308, 1e308),
                           training_line(3, 1e308, -1e308), training_line(4, 1e-300, 4)})});
  for (const Plot& plot : data.plots) {
    const std::string svg = plot_svg(plot, data.points, data.axes, data.marks, 0);
    CHECK_THAT(svg, !Catch::Contains("nan"));
    CHECK_THAT(svg, !Catch::Contains("inf"));
  }
}

TEST_CASE("Interpolation keeps to the ends of what is known") {
  CHECK(interpolate({1, 3}, {10, 30}, 2) == 20);
  CHECK(interpolate({1, 3}, {10, 30}, 0) == 10);
  CHECK(interpolate({1, 3}, {10, 30}, 9) == 30);
  CHECK(std::isnan(interpolate({}, {}, 1)));
}

}  // namespace hyperion::report
