#include "trainer/runtime/batch_job.h"

#include <cmath>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include "base/counted.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/text.h"

namespace hyperion::trainer {
namespace {

constexpr int64_t kTimedSteps = 10;           // on a GPU the host is ahead of some of them
constexpr double kLargestShareOfSaves = 0.1;  // of the time, where training waits for them

}  // namespace

std::vector<std::string> save_time_warnings(const SaveTimes& times) {
  std::vector<std::string> warnings;
  // The step that runs when the signal arrives is finished; a background save may be in flight.
  const double stop = times.step_seconds + times.save_seconds * (times.background ? 2 : 1);
  if (times.lead && stop > static_cast<double>(*times.lead)) {
    warnings.push_back(
        fmt::format("a stop before the time limit may take {:.0f} s (a step of {:.1f} s and {} of {:.1f} s), "
                    "but the warning signal comes {} s before the limit: give sbatch --signal=USR1@{:.0f}, "
                    "and the same number as HYPERION_SIGNAL_LEAD",
                    std::ceil(stop), times.step_seconds,
                    times.background ? "a save after one that may be under way, each" : "a save",
                    times.save_seconds, *times.lead, std::ceil(1.5 * stop)));
  }
  const double between = static_cast<double>(times.interval) * times.step_seconds;
  const auto steps_for = [&](double share) {
    return std::ceil(times.save_seconds / (share * times.step_seconds));
  };
  if (times.background && times.save_seconds > between) {
    warnings.push_back(
        fmt::format("a save takes {:.1f} s, longer than the {:.1f} s of the {} between two: training will "
                    "wait for each one; raise checkpoint.interval to {:.0f} or more",
                    times.save_seconds, between, counted(times.interval, "step"), steps_for(1)));
  } else if (!times.background &&
             times.save_seconds > kLargestShareOfSaves * (between + times.save_seconds)) {
    warnings.push_back(
        fmt::format("saves will take {:.0f} % of the time ({:.1f} s after every {} of {:.2f} s): raise "
                    "checkpoint.interval to {:.0f} or more, or set checkpoint.async_mode",
                    100 * times.save_seconds / (between + times.save_seconds), times.save_seconds,
                    counted(times.interval, "step"), times.step_seconds, steps_for(kLargestShareOfSaves)));
  }
  return warnings;
}

std::optional<int64_t> signal_lead() {
  const char* value = std::getenv("HYPERION_SIGNAL_LEAD");
  if (value == nullptr || *value == '\0') return std::nullopt;
  const auto seconds = parse_number<int64_t>(value);
  if (!seconds || *seconds < 0)
    throw_config("environment variable HYPERION_SIGNAL_LEAD is '{}', expected a whole number of seconds",
                 value);
  return seconds;
}

SaveTimeCheck::SaveTimeCheck(const config::JobConfig::Checkpoint& checkpoint, std::optional<int64_t> lead)
    : times_{.interval = checkpoint.interval,
             .background = checkpoint.async_mode != checkpoint::AsyncMode::kDisabled,
             .lead = lead},
      done_(!checkpoint.enable || checkpoint.load_only) {}

void SaveTimeCheck::after_step(double step_seconds, double save_seconds) {
  if (done_) return;
  seconds_ += step_seconds;
  ++steps_;
  if (steps_ < kTimedSteps || save_seconds == 0) return;
  done_ = true;
  times_.step_seconds = seconds_ / static_cast<double>(steps_);
  times_.save_seconds = save_seconds;
  for (const std::string& warning : save_time_warnings(times_)) log_warning("{}", warning);
}

ProgressFile::ProgressFile(int64_t started_after) : started_after_(started_after) {
  if (const char* path = std::getenv("HYPERION_PROGRESS_FILE"); path != nullptr) path_ = path;
  saved(started_after);
}

void ProgressFile::saved(int64_t step) const {
  if (path_.empty()) return;
  try {
    write_file_atomic(path_, fmt::format("{} {}\n", started_after_, step));
  } catch (const Error& error) {
    log_warning("HYPERION_PROGRESS_FILE cannot be written, so this job may not be started again: {}",
                error.what());
  }
}

}  // namespace hyperion::trainer
