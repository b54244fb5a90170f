// What a job and the batch system that started it tell each other: when the time limit's warning comes,
// whether a stop fits into it, and how far this start has come (scripts/train.slurm).
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

// What is wrong with them, a sentence each: a stop that takes longer than the lead, saves that follow each
// other too closely. Pure.
std::vector<std::string> save_time_warnings(const SaveTimes& times);

// HYPERION_SIGNAL_LEAD, which scripts/train.slurm sets from --signal. Throws Error(kUsage) when it is no
// number.
std::optional<int64_t> signal_lead();

// Warns once, as soon as the times of some steps and of a save have been measured.
class SaveTimeCheck {
 public:
  SaveTimeCheck(const config::JobConfig::Checkpoint& checkpoint, std::optional<int64_t> lead);
  // After a step other than a run's first, which takes longer. save_seconds: of a whole save; 0: none was
  // measured.
  void after_step(double step_seconds, double save_seconds);

 private:
  SaveTimes times_;
  double seconds_ = 0;
  int64_t steps_ = 0;
  bool done_ = false;
};

// The file that HYPERION_PROGRESS_FILE names: two numbers, the steps done when this start began and the
// newest step that it has saved. A script that requeues the job learns from it whether another start would
// make progress. Rank 0 alone.
class ProgressFile {
 public:
  explicit ProgressFile(int64_t started_after);
  void saved(int64_t step) const;  // callable from the thread of a save; a failure to write is logged

 private:
  std::filesystem::path path_;  // empty: HYPERION_PROGRESS_FILE is not set
  int64_t started_after_;
};

}  // namespace hyperion::trainer
