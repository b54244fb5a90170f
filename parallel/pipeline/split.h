// Assigns a model's units (embedding, blocks, head) to pipeline stages, by torchtitan 0.2.2's rule or as
// the user lists them. It handles numbers and names only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace hyperion::parallel {

// [first, end) of a model's units: 0 is the embedding, then come the blocks, the last one is the head.
struct UnitRange {
  size_t first = 0, end = 0;
  bool operator==(const UnitRange&) const = default;
};

struct SplitOptions {
  int64_t first_stage_less_layers = 1;        // number of blocks that the embedding counts as
  int64_t last_stage_less_layers = 1;         // number of blocks that the head counts as
  std::optional<int64_t> layers_per_stage{};  // includes embedding and head as counted above
};

// The number of stages: by `options.layers_per_stage` if set, else one or two per rank, as the schedule
// requires. Throws Error(kUsage), with the values of layers_per_stage that fit, if ranks and schedule do
// not fit that number.
int number_of_stages(PipelineKind kind, int ranks, int blocks, const SplitOptions& options);

// The units of each stage; the first stages get one block more if blocks do not divide evenly. Throws
// Error(kUsage) if there are more stages than blocks (counted as above), or if embedding or head count more
// than a stage.
std::vector<UnitRange> split_units(int stages, int blocks, const SplitOptions& options);

// The units of each stage if the user lists its modules (parallelism.module_fqns_per_model_part). `units`
// are the names of the model's units in order; the modules of one unit are joined by commas
// ("norm,output"). The order within a part is free. Throws Error(kUsage) naming part and module if a module
// is unknown, missing, duplicated or out of order, a unit is split over two parts, or a part is empty.
std::vector<UnitRange> units_of_model_parts(std::span<const std::string> units,
                                            const std::vector<std::vector<std::string>>& parts);

}  // namespace hyperion::parallel
