// Summarises a job in a few lines of its log. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/config/job_config.h"

namespace hyperion::metrics {

struct RunPlace {
  std::string device;        // "NVIDIA H100", "CPU"
  int threads = 1;           // per rank, on a CPU
  std::string mesh{};        // Mesh::describe()
  int64_t batch_degree = 1;  // ranks that read different data
};

// Returns lines about devices and mesh; batch, steps and tokens; precision, activation checkpointing and EMA;
// tensor parallelism.
std::vector<std::string> run_summary(const config::JobConfig& config, const RunPlace& place);

}  // namespace hyperion::metrics
