// Connects a job with the batch system that started it (scripts/train.slurm): the lead of the time limit's
// warning signal, whether a stop fits into it, and the progress of this start.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/job_config.h"

namespace hyperion::trainer {

struct SaveTimes {
  double step_seconds = 0, save_seconds = 0;
  int64_t interval = 0;              // checkpoint.interval
  bool background = false;           // checkpoint.async_mode is not "disabled"
  std::optional<int64_t> lead = {};  // seconds from the warning signal to the time limit
};

// Returns a warning if a stop takes longer than the lead, and a warning if saves follow each other too
// closely. Pure.
std::vector<std::string> save_time_warnings(const SaveTimes& times);

// Reads HYPERION_SIGNAL_LEAD, which scripts/train.slurm sets from --signal. Throws Error(kUsage) if it is not
// a number.
std::optional<int64_t> signal_lead();

// Warns once, when the times of some steps and of a save have been measured.
class SaveTimeCheck {
 public:
  SaveTimeCheck(const config::JobConfig::Checkpoint& checkpoint, std::optional<int64_t> lead);
  // Call it after each step except the run's first, which takes longer. `save_seconds` is the time of a
  // complete save; 0 if none was measured.
  void after_step(double step_seconds, double save_seconds);

 private:
  SaveTimes times_;
  double seconds_ = 0;
  int64_t steps_ = 0;
  bool done_ = false;
};

// Writes two numbers to the file that HYPERION_PROGRESS_FILE names: the steps done when this start began, and
// the newest step that it has saved. A script that requeues the job reads there whether another start would
// make progress. Rank 0 only.
class ProgressFile {
 public:
  explicit ProgressFile(int64_t started_after);
  void saved(int64_t step) const;  // the save thread may call it; logs a failed write

 private:
  std::filesystem::path path_;  // empty: HYPERION_PROGRESS_FILE is not set
  int64_t started_after_;
};

}  // namespace hyperion::trainer
