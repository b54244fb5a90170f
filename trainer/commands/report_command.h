// `hyperion report DIR... [-o FILE]`: metrics of runs as one HTML page.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace hyperion {

struct ReportOptions {
  std::vector<std::string> folders;  // of runs: what job.dump_folder names
  std::string output;                // the HTML file
};

// Throws Error(kUsage) for a folder without metrics and for more than kMostRuns, Error(kBadData) for metrics
// that cannot be read or hold no row, Error(kSaveFailed) when the page cannot be written.
ExitCode report_command(const ReportOptions& options);

}  // namespace hyperion
