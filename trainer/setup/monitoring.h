// What watches a job: step line and metrics files, memory, profiler.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/flavors/model_args.h"
#include "trainer/config/load.h"
#include "trainer/metrics/memory.h"
#include "trainer/metrics/metrics_logger.h"
#include "trainer/metrics/profiler.h"
#include "trainer/runtime/runtime.h"

namespace hyperion {

// For the run's record.
struct RunDescription {
  const ResolvedConfig& configured;  // as the user gave it
  const JobConfig& config;           // as the job goes by
  const ModelArgs& model;
  const std::vector<std::string>& command;  // argv
  uint64_t seed = 0;                        // of weights, data order and RNG
  std::string seed_origin{};  // where it came from: "debug.seed", "chosen by rank 0", a checkpoint
};

std::unique_ptr<MemoryMonitor> make_memory_monitor(const Runtime& runtime);

// Writes the run's record and its configuration on rank 0. start_step: updates done so far. Collective:
// every rank throws when the record cannot be written. `memory` outlives the logger.
std::unique_ptr<MetricsLogger> make_metrics(const RunDescription& run, const Runtime& runtime,
                                            MemoryMonitor& memory, int64_t start_step);

std::unique_ptr<Profiler> make_profiler(const JobConfig::Profiling& profiling, const JobConfig::Job& job,
                                        const Runtime& runtime, int64_t start_step);

}  // namespace hyperion
