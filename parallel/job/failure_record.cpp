#include "parallel/job/failure_record.h"

#include <cstdio>
#include <filesystem>
#include <mutex>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/printable.h"
#include "base/process.h"
#include "base/terminal.h"
#include "parallel/job/phase.h"

namespace hyperion::parallel {
namespace {

struct ProcessState {
  std::mutex mutex;
  Environment environment;
  std::optional<FailedOperation> operation;  // the first that failed: later failures are its consequence
  std::string newest, newest_group;          // the operation started last
  int64_t newest_number = 0;
};

// Never destroyed: a watchdog thread may fail while the process ends.
ProcessState& state() {
  static auto* instance = new ProcessState;
  return *instance;
}

// A failure to report must not hide the failure itself, so nothing is thrown.
void write_record(ExitCode code, const std::string& phase, const std::string& message) {
  const std::string folder = environment_variable("HYPERION_FAILURE_DIR").value_or("");
  if (folder.empty()) return;
  const Environment& environment = state().environment;
  try {
    nlohmann::json record = {{"rank", environment.rank}, {"world_size", environment.world_size},
                             {"host", host_name()},      {"pid", ::getpid()},
                             {"time", unix_seconds()},   {"code", static_cast<int>(code)},
                             {"phase", phase},           {"message", message}};
    if (const auto& operation = state().operation; operation && code == ExitCode::kCommunication)
      record.update({{"phase", operation->phase},
                     {"operation", operation->operation},
                     {"number", operation->number},
                     {"group", operation->group},
                     {"lost", operation->lost}});
    std::filesystem::create_directories(folder);
    write_file_atomic(std::filesystem::path(folder) / fmt::format("rank_{}.json", environment.rank),
                      record.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  } catch (const std::exception&) {
  }
}

}  // namespace

void set_own_rank(const Environment& environment) {
  std::lock_guard lock(state().mutex);
  state().environment = environment;
  state().operation.reset();
  state().newest.clear();
}

void record_failed_operation(FailedOperation operation) {
  std::lock_guard lock(state().mutex);
  if (state().operation) return;
  state().operation = std::move(operation);
  write_record(ExitCode::kCommunication, state().operation->phase, state().operation->cause);
}

bool operation_failed() {
  std::lock_guard lock(state().mutex);
  return state().operation.has_value();
}

void record_lost_ranks(std::vector<int> lost) {
  std::lock_guard lock(state().mutex);
  if (!state().operation || lost.empty()) return;
  state().operation->lost = std::move(lost);
  write_record(ExitCode::kCommunication, state().operation->phase, state().operation->cause);
}

void set_newest_operation(const std::string& operation, int64_t number, const std::string& group) {
  std::lock_guard lock(state().mutex);
  state().newest = operation;  // keeps its capacity: no allocation in the steady state
  state().newest_group = group;
  state().newest_number = number;
}

std::string newest_operation() {
  std::lock_guard lock(state().mutex);
  if (state().newest.empty()) return "";
  return fmt::format("{}, number {} of group {}", state().newest, state().newest_number,
                     state().newest_group);
}

std::string failure_sentence(ExitCode code, const std::string& message, const Environment& environment,
                             const std::string& host, const std::string& phase) {
  if (environment.world_size == 1 || (code == ExitCode::kUsage && phase.empty())) return message;
  const std::string own_prefix = fmt::format("rank {}: ", environment.rank);
  const std::string who = fmt::format("rank {} of {} on {}", environment.rank, environment.world_size, host);
  if (message.starts_with(own_prefix)) return who + ": " + message.substr(own_prefix.size());
  return fmt::format("{}{}: {}", who, phase.empty() ? "" : fmt::format(" in phase '{}'", phase), message);
}

int report_failure(ExitCode code, const std::string& message) {
  const std::string phase = phase_of_failure();
  std::fflush(stdout);
  std::lock_guard lock(state().mutex);
  const std::string sentence = failure_sentence(code, message, state().environment, host_name(), phase);
  const char* name = terminal_escapes(STDERR_FILENO) ? "\033[31mhyperion:\033[39m " : "hyperion: ";
  // fmt::print would throw where stderr is closed.
  std::fputs((name + escape_control_bytes(sentence, "\n\t") + "\n").c_str(), stderr);
  write_record(code, phase, sentence);
  return static_cast<int>(code);
}

}  // namespace hyperion::parallel
