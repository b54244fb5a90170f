// The Profiler writes Chrome traces (chrome://tracing, Perfetto) and memory snapshots
// (pytorch.org/memory_viz) of chosen training steps, with torchtitan v0.2.2's keys, schedule and file names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "trainer/config/job_config.h"

namespace hyperion::metrics {

// Facts of the run that [profiling] does not hold.
struct ProfiledRun {
  std::filesystem::path dump_folder = "outputs";
  int rank = 0;
  bool cuda = false;       // record GPU kernels too
  int64_t start_step = 0;  // last step already done: 0, or the resumed step
};

// Hooks record the allocator's history, which only the CUDA library can do. Both are empty on a CPU.
struct MemorySnapshotHooks {
  std::function<void(size_t max_entries)> start_recording;
  std::function<std::string()> snapshot_pickle;
};

enum class ProfilerPhase { kWait, kWarmUp, kRecord };

// Returns the phase of the training step after `steps_done` steps. A cycle of profile_freq steps waits, warms
// up and then records; its end writes the recording, after steps profile_freq, 2 * profile_freq, ...
ProfilerPhase profiler_phase(const config::JobConfig::Profiling& options, int64_t steps_done);

// Writes <dump>/<save_traces_folder>/iteration_<N>/rank<R>_trace.json and
// <dump>/<save_memory_snapshot_folder>/iteration_<N>/rank<R>_memory_snapshot.pickle. A failed write is a
// warning. Create and step it on the training thread. RECORD_FUNCTION("name", {}) makes code visible in
// traces.
class Profiler {
 public:
  Profiler(const config::JobConfig::Profiling& options, ProfiledRun run, MemorySnapshotHooks hooks = {});
  ~Profiler();  // drops an unfinished recording
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  // Call it after training step `step` (1, 2, ...), on every rank.
  void step(int64_t step);

  // Writes a snapshot into iteration_<steps_done>_exit after an out-of-memory error in the step after
  // `steps_done`.
  void out_of_memory(int64_t steps_done);

 private:
  struct Recording;
  void enter(ProfilerPhase phase, int64_t steps_done);
  void save_trace(int64_t step);
  void save_snapshot(const std::string& iteration);

  config::JobConfig::Profiling options_;
  ProfiledRun run_;
  MemorySnapshotHooks hooks_;
  std::unique_ptr<Recording> recording_;  // from warm-up on
};

}  // namespace hyperion::metrics
