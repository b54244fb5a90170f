// How a configuration's model is divided over the ranks of a pipeline, and in which order these run it.
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
#include "trainer/plan/size_estimate.h"

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

// What a step of `batches` local batches will be, for the log, `hyperion check` and the estimate of memory.
struct PipelinePlan {
  struct Rank {          // of the pipeline
    std::string stages;  // "stage 0 (tok_embeddings to layers.2)"
    double parameters = 0;
    int kept_microbatches = 0;  // at once, each stage counted
  };
  Pipeline pipeline;
  std::string text{};  // stages, schedule, bubble and kept microbatches
  double bubble = 0;
  std::vector<Rank> ranks{};
  std::vector<PipelineShare> shares{};              // by rank
  std::optional<std::pair<int, int>> tied_ranks{};  // ranks_of_tied_table()
  std::vector<std::string> warnings{};
};
// None without a pipeline. Throws Error(kUsage) where the schedule has no lists for so many microbatches.
std::optional<PipelinePlan> plan_pipeline(const config::JobConfig& config, const models::ModelArgs& model,
                                          int64_t batches);
// None without a pipeline.
inline std::span<const PipelineShare> shares_of(const std::optional<PipelinePlan>& plan) {
  return plan ? std::span<const PipelineShare>(plan->shares) : std::span<const PipelineShare>();
}

}  // namespace hyperion::trainer
