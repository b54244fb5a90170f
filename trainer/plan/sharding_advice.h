// What a job pays for its mesh: where another one would cost less, and what ranks that share sequences
// exchange. Pure.
#pragma once

#include <string>
#include <vector>

#include "models/args/model_args.h"
#include "parallel/mesh.h"
#include "trainer/config/job_config.h"

namespace hyperion::trainer {

// Sentences for warnings: one about FSDP without replicas over very many ranks, with degrees of HSDP that
// fit; one about experts that expert parallel ranks should divide, with a degree; one about parameters that
// have too few rows for so many shards; one about tensor parallel ranks of different nodes; one about context
// parallel ranks of different nodes. None for most jobs.
std::vector<std::string> sharding_advice(const config::JobConfig& config, const models::ModelArgs& model,
                                         const parallel::Mesh& mesh, int ranks_per_node);

// Bytes that each rank sends, by either way of the keys (models/parts/attention/gathered_attention.h).
struct ContextTraffic {
  double forward = 0;   // of a block and microbatch: keys and values
  double backward = 0;  // the same once more, and the sums of their gradients
  double step = 0;      // of all blocks of a rank and all microbatches; in a pipeline of the mean rank
};
ContextTraffic context_traffic(const config::JobConfig& config, const models::ModelArgs& model,
                               const parallel::Mesh& mesh);

}  // namespace hyperion::trainer
