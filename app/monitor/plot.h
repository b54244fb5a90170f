// Draws a curve with the characters of a terminal: braille, or ASCII. No I/O.
#pragma once

#include <string>
#include <vector>

#include "app/monitor/text.h"
#include "app/report/axis.h"
#include "app/report/plot.h"

namespace hyperion::monitor {

struct PlotSize {
  int columns = 0, rows = 0;
  static constexpr int kMinColumns = 28, kMinRows = 5;
};

// Draws the current lines of `plot`, not the superseded ones, over the steps of `axis`: title and newest
// value, the curve with its axis, labels of steps. Returns `size.rows` lines of at most `size.columns`. A red
// x marks values that are not finite.
std::vector<TextLine> draw_plot(const report::Plot& plot, const std::vector<report::PlotPoints>& points,
                                report::Interval steps, PlotSize size, bool utf8);

}  // namespace hyperion::monitor
