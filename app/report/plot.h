// Draws plots as SVG text: lines over the step, the tokens seen or the time. No I/O.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "app/report/axis.h"

namespace hyperion::report {

enum PlotAxis { kStepAxis, kTokensAxis, kTimeAxis, kPlotAxes };

// The x coordinates that the lines of one table share.
struct PlotPoints {
  int run = 0;
  bool superseded = false;                         // steps that a restart repeated; drawn faint
  std::array<std::vector<double>, kPlotAxes> x{};  // NaN if unknown
};

struct PlotLine {
  size_t points = 0;             // index of its PlotPoints
  std::vector<double> mean{};    // NaN: no finite value there
  std::vector<double> low{};     // smallest and largest value of each bucket; both empty if no bucket has
  std::vector<double> high{};    // more than one value
  std::vector<size_t> broken{};  // points with a value that is NaN or infinite
  std::vector<size_t> marked{};  // points with a circle at their largest value
};

struct Plot {
  std::string title, unit;
  bool from_zero = false;  // the axis starts at 0 and is linear by default
  bool over_time = false;  // the x axis is always time
  bool noisy = false;      // the page's smoothing applies
  std::vector<PlotLine> lines{};
  std::string reference{};           // name of the reference values: "training.max_norm"
  std::vector<double> references{};  // dashed; the axis includes those up to kFarthestReference * values
};
inline constexpr double kFarthestReference = 3;

struct HorizontalAxis {
  std::string name;
  Interval interval{};
};

// A restart, marked at its first step.
struct PlotMark {
  int run = 0;
  std::array<double, kPlotAxes> x{};
};

struct PlotFrame {
  static constexpr double kWidth = 640, kHeight = 270;
  static constexpr double kLeft = 62, kRight = 626, kTop = 10, kBottom = 232;
};

// Returns the range of the finite values of all lines.
Interval values_of(const Plot& plot);

// Draws the plot for a page without script: over the step, or over the time. The page's script redraws it as
// the reader chooses. `first_line` is the number of the plot's first line in the script's data.
std::string plot_svg(const Plot& plot, const std::vector<PlotPoints>& points,
                     const std::array<HorizontalAxis, kPlotAxes>& axes, const std::vector<PlotMark>& marks,
                     size_t first_line);

// Returns the plot's lines for the script as JSON, numbers only.
std::string lines_json(const Plot& plot);

// Returns a JSON array with null for non-finite values.
std::string json_numbers(const std::vector<double>& values);

}  // namespace hyperion::report
