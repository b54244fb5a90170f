// FP8 in a job: which layers multiply in it, on what, and how their weights travel.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/float8/linear_matmuls.h"
#include "models/transformer.h"
#include "parallel/fsdp/fsdp.h"
#include "parallel/fsdp/gather_codec.h"
#include "trainer/config/job_config.h"

namespace hyperion::trainer {

struct Float8Setup {
  std::shared_ptr<float8::Counters> counters;          // null: FP8 is off
  std::shared_ptr<const parallel::GatherCodec> codec;  // null: weights are gathered in the compute dtype
  std::vector<std::string> converted;                  // module names: linear layers, then experts
  std::vector<std::string> log, warnings;              // what is on and what is not
};

// Where FP8 products would run.
struct Float8Device {
  bool cpu = true;
  int compute_capability = 0;  // of a GPU: 89 for SM89
  std::string name{};
};

// Gives the layers that [quantize.linear.float8] or [quantize.linear.mx] chooses FP8 products, and the
// experts that [quantize.grouped_mm.float8] or [quantize.grouped_mm.mx] names; nothing when no converter is
// listed. Before the model is sharded. Throws Error(kUsage) for a recipe that the device cannot run.
Float8Setup convert_to_float8(models::Transformer& model, const config::JobConfig& config,
                              const Float8Device& device);

// How weights reach their layers, for the log: what an all-gather of all moves in FP8, what that would be in
// the compute dtype, and the rest; all in bytes of the unsharded tensors (of this rank's parts of them under
// tensor parallelism).
std::string describe_gathers(const std::vector<parallel::ShardedParameterPtr>& parameters,
                             const parallel::FsdpContext& fsdp);

}  // namespace hyperion::trainer
