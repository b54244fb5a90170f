// The jobs and pipelines whose sizes are tested.
#pragma once

#include <string>
#include <vector>

#include "trainer/config/load.h"
#include "trainer/plan/size_estimate.h"

namespace hyperion::trainer {

inline config::ResolvedConfig resolved(const std::string& toml) {
  return config::parse_config(toml, "job.toml", {});
}

// Returns a share with one moment, in which all stages have the same weights and gradients.
inline PipelineShare share_of(const std::vector<PipelineShare::Stage>& stages, int64_t kept_inputs,
                              const parallel::StageWeights& weights = {}, int64_t deferred_blocks = 0) {
  return {.stages = stages,
          .moments = {{.weights = std::vector(stages.size(), weights),
                       .kept_inputs = kept_inputs,
                       .deferred_blocks = deferred_blocks}}};
}

}  // namespace hyperion::trainer
