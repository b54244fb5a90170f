// The jobs whose sizes are tested.
#pragma once

#include <string>

#include "trainer/build/peak_memory.h"
#include "trainer/config/load.h"
#include "trainer/config/validate.h"
#include "trainer/runtime/runtime.h"

namespace hyperion::trainer {

inline config::ResolvedConfig resolved(const std::string& toml) {
  return config::parse_config(toml, "job.toml", {});
}

// Returns the mesh of `config` with `shards` FSDP shards.
inline parallel::Mesh mesh_of(config::JobConfig config, int shards) {
  auto& degrees = config.parallelism;
  degrees.data_parallel_shard_degree = shards / degrees.context_parallel_degree;
  const int64_t ranks = degrees.pipeline_parallel_degree * degrees.data_parallel_replicate_degree * shards *
                        degrees.tensor_parallel_degree;
  return parallel::Mesh(mesh_config(config), static_cast<int>(ranks));
}

// The size of a rank that has these units, by default all, without the replay of a step.
inline JobSize size_of(const config::JobConfig& config, const models::ModelDescription& model, int shards,
                       std::vector<ModelStage> stages = {}) {
  if (stages.empty()) stages = {all_units(model)};
  return job_size(config, model, mesh_of(config, shards), stages);
}
inline JobSize size_of(const config::JobConfig& config, const models::ModelArgs& args, int shards,
                       const std::vector<ModelStage>& stages = {}) {
  return size_of(config, models::describe_model(args), shards, stages);
}

// The size of the rank that needs the most, with the replay of a step.
inline JobSize largest_size(const config::JobConfig& config, const models::ModelArgs& args, int shards,
                            bool on_gpu = true) {
  const parallel::Mesh mesh = mesh_of(config, shards);
  const int64_t batches = config::microbatches_of(config.training, mesh.degree(parallel::MeshDim::kBatch));
  return largest_replayed_size(config, args, mesh, plan_pipeline(config, args, batches), on_gpu);
}

}  // namespace hyperion::trainer
