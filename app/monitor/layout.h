// Lays a run out as the lines of a terminal. No I/O.
#pragma once

#include <string>
#include <vector>

#include "app/monitor/follower.h"
#include "app/monitor/text.h"

namespace hyperion::monitor {

struct View {
  int columns = 80;
  int rows = 24;  // 0: as many as are needed, for a log
  bool utf8 = true;
  double now = 0;        // seconds since 1970
  std::string hint{};    // behind the line that waits for the file
  std::string footer{};  // the last line; none for a log
};

// The smallest terminal that shows more than one sentence.
inline constexpr int kMinColumns = 20, kMinRows = 4;

// Returns at most `rows` lines of at most `columns`. Lines that do not fit are left out: first plots, then
// the facts of the lowest importance, then the last parts of a fact.
std::vector<TextLine> layout(const MonitoredRun& state, const View& view);

}  // namespace hyperion::monitor
