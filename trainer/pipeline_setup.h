// How a configuration's model is divided over the ranks of a pipeline, and in which order these run it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/flavors/model_args.h"
#include "trainer/config/job_config.h"
#include "trainer/schedule.h"

namespace hyperion::trainer {

struct PipelineSettings {
  parallel::PipelineKind kind = parallel::PipelineKind::k1F1B;
  std::optional<parallel::PipelineSchedule> listed{};  // of one local batch, instead of `kind`
  int ranks = 1;
  std::vector<UnitRange> stages{};                  // of `listed`, or a multiple of `ranks`
  size_t microbatches = 1;                          // of one local batch; a step has a multiple of them
  bool recomputes = false;                          // most blocks, in backward
  bool gathers_stages = true, reduces_once = true;  // as of Pipeline
};
Pipeline make_pipeline(const PipelineSettings& settings);

int rank_of_unit(const Pipeline& pipeline, size_t unit);
// The units of the rank's stages.
std::vector<UnitRange> units_of_rank(const Pipeline& pipeline, int rank);

// The ranks of the first and the last stage, where `model` has a tied table and they are not one.
std::optional<std::pair<int, int>> ranks_of_tied_table(const std::optional<Pipeline>& pipeline,
                                                       const models::ModelArgs& model);

// None without a pipeline. Throws Error(kUsage) for settings that cannot be run, with key and remedy. Pure:
// every rank, and `hyperion check`, finds the same.
std::optional<Pipeline> configured_pipeline(const config::JobConfig& config, const models::ModelArgs& model);
// The lists of a step of `batches` local batches. Throws Error(kUsage) where the schedule has none for so
// many microbatches.
parallel::PipelineSchedule step_of(const Pipeline& pipeline, const config::JobConfig& config,
                                   int64_t batches);

// For the log and `hyperion check`, where there is a pipeline: stages, schedule, bubble and kept microbatches
// of a step of `batches` local batches.
std::string describe_pipeline(const config::JobConfig& config, const models::ModelArgs& model,
                              int64_t batches);

}  // namespace hyperion::trainer
