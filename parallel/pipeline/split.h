// Which units of a model (embedding, blocks, head) each pipeline stage has, by torchtitan 0.2.2's rule or as
// the user lists them. Numbers and names alone.
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
  int64_t first_stage_less_layers = 1;        // blocks that the embedding counts as
  int64_t last_stage_less_layers = 1;         // blocks that the head counts as
  std::optional<int64_t> layers_per_stage{};  // of a stage, blocks and what counts as blocks
};

// The number of stages: for `options.layers_per_stage` as many as that takes, else one or two per rank, as
// the schedule has them. Throws Error(kUsage) where the ranks and the schedule do not fit that number, with
// the values of layers_per_stage that do.
int number_of_stages(PipelineKind kind, int ranks, int blocks, const SplitOptions& options);

// The units of each stage: the first ones have one block more where they do not divide. Throws Error(kUsage)
// for more stages than there is to divide, and for an embedding or head that counts more than a stage.
std::vector<UnitRange> split_units(int stages, int blocks, const SplitOptions& options);

// The units of each stage where the user lists its modules (parallelism.module_fqns_per_model_part). `units`:
// names of the model's units in their order, with the modules of a unit between commas ("norm,output").
// Within a part the order is free. Throws Error(kUsage) with part and name for a module that is unknown,
// missing, there twice or out of order, a unit on two parts, and an empty part.
std::vector<UnitRange> units_of_parts(std::span<const std::string> units,
                                      const std::vector<std::vector<std::string>>& parts);

}  // namespace hyperion::parallel
