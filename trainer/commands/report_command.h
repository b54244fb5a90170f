// `hyperion report DIR... [-o FILE]`: metrics of runs as one HTML page.
#pragma once

#include "base/error.h"
#include "trainer/commands/command_line.h"

namespace hyperion::trainer {

// Throws Error(kUsage) for a folder without metrics and for more than kMostRuns, Error(kBadData) for metrics
// that cannot be read or hold no row, Error(kSaveFailed) when the page cannot be written.
ExitCode report_command(const CommandLine::Report& options);

}  // namespace hyperion::trainer
