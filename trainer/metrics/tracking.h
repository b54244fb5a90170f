// Rank 0's side processes, one for each tracker: Weights & Biases, MLflow, and the user's command for alerts.
// Each is scripts/tracking/tracking.py in the user's Python, in a session of its own. It follows
// metrics.jsonl, so training waits for it in two bounded places only: the check before step 1, and the end of
// the process.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trainer/config/job_config.h"

namespace hyperion::metrics {

struct TrackedRun {
  std::filesystem::path dump_folder;
  std::string run_id;                  // this start's folder under runs/
  std::filesystem::path install_root;  // of scripts/tracking/
};

// Returns the trackers that are switched on: "wandb", "mlflow", "alert".
std::vector<std::string> trackers(const config::JobConfig::Metrics& options);

// Throws Error(kUsage) if the Python cannot be run, or lacks a tracker's package or credentials.
void require_trackers(const config::JobConfig::Metrics& options, const TrackedRun& run);

// Starts the side processes of this process. metrics.jsonl must exist.
void start_trackers(const config::JobConfig::Metrics& options, const TrackedRun& run);

// Logs what they have said, and starts those again that have died: bounded, with back-off. Does not wait.
// Callable from any thread.
void watch_trackers();

// Sends them the job's exit code and waits a bounded time until they have sent everything; then they continue
// on by themselves. Does nothing without trackers.
void finish_trackers(int exit_code);

}  // namespace hyperion::metrics
