// Advises on the cost of a job's mesh, and computes the padding of shards and the traffic of context
// parallelism. Pure.
#pragma once

#include <string>
#include <vector>

#include "models/args/model_args.h"
#include "models/description.h"
#include "parallel/mesh.h"
#include "trainer/config/job_config.h"

namespace hyperion::trainer {

// Returns warnings, none for most jobs: FSDP without replicas over very many ranks (with HSDP degrees that
// fit); experts that expert parallelism should shard (with a degree); parameters with too few rows for the
// number of shards; tensor or context parallel groups that span nodes; gathered keys of long sequences.
std::vector<std::string> sharding_advice(const config::JobConfig& config, const models::ModelArgs& model,
                                         const parallel::Mesh& mesh, int ranks_per_node);

// The part of a parameter that one FSDP group shards: a shard holds whole rows, as many as the largest one
// (parallel/fsdp/sharded_parameter.h), so what the group gathers and reduces is padded.
struct ShardedRows {
  int64_t rows = 0;
  double numel = 0, padded = 0;  // elements, without and with padding
};
ShardedRows sharded_rows(const models::ParameterShape& shape, const parallel::Mesh& mesh);

// Bytes that each context parallel rank sends. Ring and gathered attention
// (models/parts/attention/gathered_attention.h) send the same.
struct ContextTraffic {
  double forward = 0;   // per block and microbatch: keys and values
  double backward = 0;  // per block and microbatch: the same again, and the sums of their gradients
  double step = 0;      // over all blocks and microbatches of a rank; in a pipeline, of the mean rank
};
ContextTraffic context_traffic(const config::JobConfig& config, const models::ModelArgs& model,
                               const parallel::Mesh& mesh);

}  // namespace hyperion::trainer
