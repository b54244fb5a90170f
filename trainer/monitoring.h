// Creates the monitors of a job: start log, run record, metrics files and profiler.
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

// Facts for the run's record.
struct RunDescription {
  const Job& job;
  const config::JobConfig& config;          // configuration that the run follows
  const std::vector<std::string>& command;  // argv
  uint64_t seed = 0;                        // seed of weights, data order and RNG
};

// Writes the run's record and configuration on rank 0, and creates the metrics logger. `start` is the
// state that training continues. Collective: every rank throws if the record cannot be written, another job
// writes its metrics there, or metrics.prometheus_port is in use.
std::unique_ptr<metrics::MetricsLogger> make_metrics(const RunDescription& run,
                                                     const checkpointing::Checkpointer& checkpointer,
                                                     const checkpointing::TrainState& start);

// Logs the job and its start to the log and metrics.jsonl.
void log_start(const RunDescription& run, const checkpointing::Checkpointer& checkpointer,
               const checkpointing::TrainState& state, metrics::MetricsLogger& metrics);

std::unique_ptr<metrics::Profiler> make_profiler(const config::JobConfig::Profiling& profiling,
                                                 const config::JobConfig::Job& job, const Runtime& runtime,
                                                 int64_t start_step);

}  // namespace hyperion::trainer
