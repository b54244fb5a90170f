// A pipeline schedule from a CSV file, as PyTorch's _dump_csv writes it: one row for each rank, one compute
// action in each cell ("2F0", "3B1", "(0F1;3B0)OVERLAP_F_B"), empty cells for the bubble.
#pragma once

#include <string_view>

#include "parallel/pipeline/schedule.h"

namespace hyperion::parallel {

// The compute actions of one batch of `microbatches` on `ranks` ranks. Which stages there are, and the rank
// of each, follows from the rows. `name`: the file, for messages. Throws Error(kUsage) that names row and
// column (from 1) where the text is no such table, an action is there twice, missing or on a second rank, or
// ranks wait for each other.
PipelineSchedule parse_csv_schedule(std::string_view text, std::string_view name, int ranks,
                                    int microbatches);

}  // namespace hyperion::parallel
