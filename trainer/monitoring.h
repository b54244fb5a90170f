// What watches a job: the log of its start, step line and metrics files, memory, profiler.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainer/checkpointing/checkpointer.h"
#include "trainer/config/job_config.h"
#include "trainer/job.h"
#include "trainer/metrics/metrics_logger.h"
#include "trainer/metrics/profiler.h"
#include "trainer/runtime/runtime.h"

namespace hyperion::trainer {

// For the run's record.
struct RunDescription {
  const Job& job;
  const config::JobConfig& config;          // that the run follows
  const std::vector<std::string>& command;  // argv
  uint64_t seed = 0;                        // of weights, data order and RNG
};

// Writes the run's record and its configuration on rank 0. start_step: updates done so far. Collective:
// every rank throws when the record cannot be written, or another job writes its metrics there.
std::unique_ptr<metrics::MetricsLogger> make_metrics(const RunDescription& run,
                                                     const checkpointing::Checkpointer& checkpointer,
                                                     int64_t start_step);

// What is running and from where, for whoever reads the log or metrics.jsonl later.
void log_start(const RunDescription& run, const checkpointing::Checkpointer& checkpointer, int64_t start_step,
               metrics::MetricsLogger& metrics);

std::unique_ptr<metrics::Profiler> make_profiler(const config::JobConfig::Profiling& profiling,
                                                 const config::JobConfig::Job& job, const Runtime& runtime,
                                                 int64_t start_step);

}  // namespace hyperion::trainer
