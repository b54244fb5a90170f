// Fits a configuration to the number of ranks that a job has (parallelism.on_mesh_mismatch), and names the
// numbers of ranks and the batches that go together. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/load.h"

namespace hyperion::config {

struct DataDegrees {
  int64_t replicate = 1, shard = 1;
  bool operator==(const DataDegrees&) const = default;
};

// Returns the data-parallel degrees with which the mesh has `world` ranks; the other dimensions keep their
// degrees. The number of shards stays and the number of replicas follows; if that is impossible, the shards
// become the next larger number, which needs no more memory, else the next smaller one. A shard degree of -1
// takes what the replicas leave. Returns nullopt if no number of either fits.
std::optional<DataDegrees> fit_degrees(const JobConfig& config, int64_t world);

struct FittedConfig {
  ResolvedConfig resolved;
  std::string change{};  // one sentence: the old and the new mesh, the microbatches and tokens of a step
};
// Returns the configuration for `world` ranks. It is the given one, without a sentence, if its mesh fits, if
// parallelism.on_mesh_mismatch is "error", or if no data-parallel degrees fit (check_config() refuses that).
// The batch of a step stays: training.global_batch_size is set if the configured mesh determines it.
FittedConfig fit_to_ranks(const ResolvedConfig& resolved, int64_t world);

// Returns the numbers of ranks near `world`, ascending, that this job can have with a step of `batch`
// sequences (-1: any): up to three smaller and two larger ones.
std::vector<int64_t> fitting_ranks(const JobConfig& config, int64_t world, int64_t batch);

// Returns what makes a step of `batch` sequences possible that `ranks` data-parallel ranks cannot make with
// their local_batch_size: "2 or 4 ranks, or training.local_batch_size = 1".
std::string ways_to_batch(const JobConfig& config, int64_t ranks, int64_t batch);

// Returns the multiples of `unit` next to `number`, above 0.
std::vector<int64_t> multiples_near(int64_t number, int64_t unit);

// Returns "2, 4 or 8".
std::string listed_or(const std::vector<int64_t>& numbers);

}  // namespace hyperion::config
