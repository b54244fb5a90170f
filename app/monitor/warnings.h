// Finds what needs attention in a run. No I/O.
#pragma once

#include <optional>
#include <vector>

#include "app/monitor/follower.h"
#include "app/monitor/text.h"

namespace hyperion::monitor {

// A line is late after the time of kStaleLines logged steps, but not before kStaleSeconds.
inline constexpr double kStaleLines = 3, kStaleSeconds = 5;

// Returns the newest "start" event if it has logged no step yet, else nullptr.
const report::MetricRow* start_without_step(const report::ReportRun& run);

// Returns whether a run that has logged a step and has not ended wrote no line for too long.
bool is_stale(const MonitoredRun& state, double now);

// Returns how the newest start ended; nullopt if it has not. The text is not safe.
std::optional<Span> ending(const report::ReportRun& run);

// The gravest first.
std::vector<Span> warnings_of(const MonitoredRun& state, double now, bool utf8);

}  // namespace hyperion::monitor
