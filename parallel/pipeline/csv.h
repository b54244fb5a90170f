// Reads a pipeline schedule from a CSV file, as PyTorch's _dump_csv writes it: one row per rank, one
// compute action per cell ("2F0", "3B1", "(0F1;3B0)OVERLAP_F_B"), empty cells for the bubble.
#pragma once

#include <string_view>

#include "parallel/pipeline/schedule.h"

namespace hyperion::parallel {

// Returns the compute actions of one batch of `microbatches` on `ranks` ranks. The rows determine the
// stages and the rank of each. `name` is the file, for messages. Throws Error(kUsage) naming row and column
// (from 1) if the text is not such a table, an action is duplicated, missing or on a second rank, or ranks
// wait for each other.
PipelineSchedule parse_csv_schedule(std::string_view text, std::string_view name, int ranks,
                                    int microbatches);

}  // namespace hyperion::parallel
