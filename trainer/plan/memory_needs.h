// What a job's rank needs in its host's memory and in its GPU's, beside what it may use. Pure.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "base/resources.h"
#include "trainer/config/load.h"
#include "trainer/plan/size_estimate.h"

namespace hyperion::trainer {

// What one rank needs, in its host's memory and in that of its GPU.
struct MemoryPart {
  std::string_view name;
  double bytes;
};
struct MemoryNeeds {
  std::vector<MemoryPart> host, device;  // without a GPU all is in the host's

  // Of the rank's state or of a copy: without what is small, which every job has in the host's memory.
  bool keeps_state_in_host() const;
};
// `threads`: that compute on a CPU.
MemoryNeeds memory_needs(const config::JobConfig& config, const JobSize& size, bool on_gpu, int threads = 1);
double total(const std::vector<MemoryPart>& parts);

// What one rank may use.
struct RankMemory {
  MemoryLimit host;
  int threads = 1;                      // that compute on a CPU
  std::optional<MemoryLimit> device{};  // nullopt: a CPU, everything is in host memory
};

// Throws Error(kUsage) with the sizes when the job cannot fit.
void require_memory(const config::ResolvedConfig& resolved, const JobSize& size, const RankMemory& memory);

// For commands that look at a model: its names and shapes, and `bytes_per_parameter` of each weight on the
// device. Throws Error(kUsage) when they cannot fit.
void require_memory(const models::ModelArgs& model, double bytes_per_parameter, const RankMemory& memory);

}  // namespace hyperion::trainer
