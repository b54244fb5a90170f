// Sets up FP8 for a job: the converted layers, the device's support and the all-gather codec.
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
  std::vector<std::string> log, warnings;              // lines for the log; warnings
};

// The device that would run FP8 products.
struct Float8Device {
  bool cpu = true;
  int compute_capability = 0;  // GPU only: 89 for SM89
  std::string name{};
};

// Switches the layers chosen by [quantize.linear.float8] or [quantize.linear.mx], and the experts chosen by
// [quantize.grouped_mm.float8] or [quantize.grouped_mm.mx], to FP8 products. It does nothing if no converter
// is listed. Call it before the model is sharded. Throws Error(kUsage) for a recipe that the device cannot
// run.
Float8Setup convert_to_float8(models::Transformer& model, const config::JobConfig& config,
                              const Float8Device& device);

// Describes for the log how many bytes an all-gather of all weights moves in FP8, how many the same weights
// would take in the compute dtype, and how many the other weights take. Bytes are those of the unsharded
// tensors, or of this rank's TP shard of them.
std::string describe_gathers(const std::vector<parallel::ShardedParameterPtr>& parameters,
                             const parallel::FsdpContext& fsdp);

}  // namespace hyperion::trainer
