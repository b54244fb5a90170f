// Says in words how a run is doing: from its newest rows, events and records. No I/O.
#pragma once

#include <string>
#include <vector>

#include "app/monitor/follower.h"
#include "app/monitor/text.h"

namespace hyperion::monitor {

// One labelled line. The parts are in the order of their importance, so that a narrow terminal leaves out the
// last ones; the facts in the order of the screen.
struct Fact {
  std::string label;
  std::vector<Span> parts;
  int importance = 0;  // a low terminal leaves out the facts of the lowest importance
};

struct Summary {
  Span condition;  // "running, newest line 2 s ago", "ended: completed, exit code 0"
  std::vector<Fact> facts;
  std::vector<Span> warnings;
  double progress = -1;  // share of training.steps that is done; -1: unknown
};

// `now`: seconds since 1970.
Summary summarize(const MonitoredRun& state, double now, bool utf8);

}  // namespace hyperion::monitor
