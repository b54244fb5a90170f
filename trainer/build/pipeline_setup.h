// Splits a configuration's model into pipeline stages, assigns them to ranks and chooses the schedule.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/args/model_args.h"
#include "trainer/config/job_config.h"
#include "trainer/engine/schedule.h"
#include "trainer/plan/job_size.h"

namespace hyperion::trainer {

struct PipelineSettings {
  parallel::PipelineKind kind = parallel::PipelineKind::k1F1B;
  std::optional<parallel::PipelineSchedule> listed{};  // lists for one local batch, instead of `kind`
  int ranks = 1;
  std::vector<UnitRange> stages{};                  // as many as `listed` has, or a multiple of `ranks`
  size_t microbatches = 1;                          // per local batch; a step has a multiple of them
  bool recomputes = false;                          // backward recomputes most blocks
  bool gathers_stages = true, reduces_once = true;  // as in Pipeline
};
Pipeline make_pipeline(const PipelineSettings& settings);

int rank_of_unit(const Pipeline& pipeline, size_t unit);
// Returns the units of the rank's stages.
std::vector<UnitRange> units_of_rank(const Pipeline& pipeline, int rank);

// Returns the ranks of the first and the last stage if `model` has a tied table and these ranks differ.
std::optional<std::pair<int, int>> ranks_of_tied_table(const std::optional<Pipeline>& pipeline,
                                                       const models::ModelArgs& model);

// Returns nullopt without a pipeline. Throws Error(kUsage), with key and remedy, for settings that cannot be
// run. Pure, so every rank and `hyperion check` get the same result.
std::optional<Pipeline> configured_pipeline(const config::JobConfig& config, const models::ModelArgs& model);

// Describes a pipeline step of `batches` local batches for the log, `hyperion check` and the memory estimate.
struct PipelinePlan {
  struct Rank {          // one pipeline rank
    std::string stages;  // "stage 0 (tok_embeddings to layers.2)"
    double parameters = 0;
    int max_in_flight = 0;  // most in flight, summed over its stages
  };
  Pipeline pipeline;
  parallel::PipelineSchedule lists{};  // of a training step
  std::string text{};                  // stages, schedule, bubble and microbatches in flight
  double bubble = 0;
  std::vector<Rank> ranks{};
  std::vector<std::vector<ModelStage>> shares{};    // by pipeline rank
  std::optional<std::pair<int, int>> tied_ranks{};  // ranks_of_tied_table()
  std::vector<std::string> warnings{};
};
// Returns nullopt without a pipeline. Throws Error(kUsage) if the schedule does not support that number of
// microbatches.
std::optional<PipelinePlan> plan_pipeline(const config::JobConfig& config, const models::ModelArgs& model,
                                          int64_t batches);

}  // namespace hyperion::trainer
