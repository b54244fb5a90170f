// Predicts the memory that steps take on a rank: it replays the tensors of the steps, in the order of the
// engine's schedule, in a model of libtorch's allocator. Pure.
#pragma once

#include <limits>
#include <optional>

#include "models/description.h"
#include "parallel/mesh.h"
#include "trainer/build/pipeline_setup.h"
#include "trainer/config/job_config.h"
#include "trainer/plan/job_size.h"

namespace hyperion::trainer {

// The job of which a rank's steps are replayed. `pipeline` is null without a pipeline.
struct ReplayedJob {
  const config::JobConfig& config;
  const models::ModelArgs& args;
  const models::ModelDescription& model;
  const parallel::Mesh& mesh;
  const PipelinePlan* pipeline;

  size_t pipeline_ranks() const { return pipeline == nullptr ? 1 : pipeline->shares.size(); }
};

// Returns the size of a pipeline rank with its peak: on a GPU an estimate within a few percent, on a CPU
// without working memory. Returns nullopt as soon as a GPU has reserved more than `limit` bytes.
std::optional<JobSize> replayed_size(const ReplayedJob& job, size_t pipeline_rank, bool on_gpu,
                                     double limit = std::numeric_limits<double>::infinity());
// Returns the size of the pipeline rank that needs the most.
JobSize largest_replayed_size(const config::JobConfig& config, const models::ModelArgs& args,
                              const parallel::Mesh& mesh, const std::optional<PipelinePlan>& pipeline,
                              bool on_gpu);

}  // namespace hyperion::trainer
