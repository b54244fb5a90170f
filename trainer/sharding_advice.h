// What a job pays for how its parameters are sharded, where another mesh would cost less. Pure.
#pragma once

#include <string>
#include <vector>

#include "models/flavors/model_args.h"
#include "parallel/mesh.h"
#include "trainer/config/job_config.h"

namespace hyperion::trainer {

// Sentences for warnings: one about FSDP without replicas over very many ranks, with degrees of HSDP that
// fit; one about experts that expert parallel ranks should divide, with a degree; one about parameters that
// have too few rows for so many shards; one about tensor parallel ranks of
// different nodes. None for most jobs.
std::vector<std::string> sharding_advice(const config::JobConfig& config, const models::ModelArgs& model,
                                         const parallel::Mesh& mesh, int ranks_per_node);

}  // namespace hyperion::trainer
