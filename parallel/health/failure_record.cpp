#include "parallel/health/failure_record.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/files.h"
#include "base/printable.h"
#include "base/process.h"
#include "base/terminal.h"
#include "parallel/job/phase.h"

namespace hyperion::parallel {
namespace {

struct Own {
  std::mutex mutex;
  Environment environment;
  std::optional<FailedOperation> operation;  // the first that failed: what follows is its consequence
  std::string newest, newest_group;          // started last
  int64_t newest_number = 0;
};

Own& own() {
  static Own* instance = new Own;  // never destroyed: a watchdog thread may fail while the process ends
  return *instance;
}

// A failure to report must not hide the failure itself, so nothing is thrown.
void write_record(ExitCode code, const std::string& phase, const std::string& message) {
  const char* folder = std::getenv("HYPERION_FAILURE_DIR");
  if (folder == nullptr || *folder == '\0') return;
  try {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    nlohmann::json record = {{"rank", own().environment.rank},
                             {"world_size", own().environment.world_size},
                             {"host", host_name()},
                             {"pid", ::getpid()},
                             {"time", std::chrono::duration<double>(now).count()},
                             {"code", static_cast<int>(code)},
                             {"phase", phase},
                             {"message", message}};
    if (const auto& operation = own().operation; operation && code == ExitCode::kCommunication) {
      record["phase"] = operation->phase;
      record["operation"] = operation->operation;
      record["number"] = operation->number;
      record["group"] = operation->group;
      record["lost"] = operation->lost;
    }
    std::filesystem::create_directories(folder);
    write_file_atomic(std::filesystem::path(folder) / fmt::format("rank_{}.json", own().environment.rank),
                      record.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  } catch (const std::exception&) {
  }
}

}  // namespace

void set_own_rank(const Environment& environment) {
  std::lock_guard lock(own().mutex);
  own().environment = environment;
  own().operation.reset();
  own().newest.clear();
}

void record_failed_operation(FailedOperation operation) {
  std::lock_guard lock(own().mutex);
  if (own().operation) return;
  own().operation = std::move(operation);
  write_record(ExitCode::kCommunication, own().operation->phase, own().operation->cause);
}

bool operation_failed() {
  std::lock_guard lock(own().mutex);
  return own().operation.has_value();
}

void record_lost_ranks(std::vector<int> lost) {
  std::lock_guard lock(own().mutex);
  if (!own().operation || lost.empty()) return;
  own().operation->lost = std::move(lost);
  write_record(ExitCode::kCommunication, own().operation->phase, own().operation->cause);
}

void set_newest_operation(const std::string& operation, int64_t number, const std::string& group) {
  std::lock_guard lock(own().mutex);
  own().newest = operation;  // keeps its capacity: no allocation in the steady state
  own().newest_group = group;
  own().newest_number = number;
}

std::string newest_operation() {
  std::lock_guard lock(own().mutex);
  if (own().newest.empty()) return "";
  return fmt::format("{}, number {} of group {}", own().newest, own().newest_number, own().newest_group);
}

std::string failure_sentence(ExitCode code, const std::string& message, const Environment& environment,
                             const std::string& host, const std::string& phase) {
  if (environment.world_size == 1 || (code == ExitCode::kUsage && phase.empty())) return message;
  const std::string own_prefix = fmt::format("rank {}: ", environment.rank);
  const std::string place =
      fmt::format("rank {} of {} on {}", environment.rank, environment.world_size, host);
  if (message.starts_with(own_prefix)) return place + ": " + message.substr(own_prefix.size());
  return fmt::format("{}{}: {}", place, phase.empty() ? "" : fmt::format(" in phase '{}'", phase), message);
}

int report_failure(ExitCode code, const std::string& message) {
  const std::string phase = phase_of_failure();
  std::fflush(stdout);
  std::lock_guard lock(own().mutex);
  const std::string sentence = failure_sentence(code, message, own().environment, host_name(), phase);
  const char* name = terminal_escapes(STDERR_FILENO) ? "\033[31mhyperion:\033[39m " : "hyperion: ";
  std::fputs((name + escape_control_bytes(sentence, "\n\t") + "\n").c_str(),
             stderr);  // fmt::print would throw where nobody reads it
  write_record(code, phase, sentence);
  return static_cast<int>(code);
}

}  // namespace hyperion::parallel
