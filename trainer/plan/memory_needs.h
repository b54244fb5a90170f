// Compares the memory that a rank needs on its host and its GPU with the memory that it may use. Pure.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "base/resources.h"
#include "trainer/config/load.h"
#include "trainer/plan/job_size.h"

namespace hyperion::trainer {

// One item of the memory that a rank needs.
struct MemoryPart {
  std::string_view name;
  double bytes;
};
struct MemoryNeeds {
  std::vector<MemoryPart> host, device;  // without a GPU everything is in `host`

  // Returns whether host memory holds the rank's state or a copy of it. Small items, which every job keeps
  // there, do not count.
  bool keeps_state_in_host() const;
};
// A rank needs at least its states and what the replay of a step (`size.peak`) has at once. `threads` is the
// number of threads that compute on a CPU.
MemoryNeeds memory_needs(const config::JobConfig& config, const JobSize& size, bool on_gpu, int threads = 1);
double total(const std::vector<MemoryPart>& parts);

// The memory that one rank may use.
struct RankMemory {
  MemoryLimit host;
  int threads = 1;                      // threads that compute on a CPU
  std::optional<MemoryLimit> device{};  // nullopt: a CPU, everything is in host memory
};

// Throws Error(kUsage) with the sizes if the job cannot fit.
void require_memory(const config::ResolvedConfig& resolved, const JobSize& size, const RankMemory& memory);

// Checks commands that read a model: names and shapes on the host, `bytes_per_parameter` of each weight on
// the device. Throws Error(kUsage) if they cannot fit.
void require_memory(const models::ModelArgs& model, double bytes_per_parameter, const RankMemory& memory);

}  // namespace hyperion::trainer
