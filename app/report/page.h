// The page of `hyperion report`. No I/O.
#pragma once

#include <string>
#include <vector>

#include "app/report/report_data.h"

namespace hyperion::report {

// Runs are told apart by colour and dash: as many as there are pairs of them.
inline constexpr size_t kMaxRuns = 14;

// A complete HTML document that loads nothing. `now`: seconds since 1970, for the age of the newest lines.
std::string report_page(const std::vector<ReportRun>& runs, double now);

}  // namespace hyperion::report
