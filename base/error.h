// Error is any failure a user can meet, with the exit code of the process (documented in
// docs/exit_codes.md).
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace hyperion {

enum class ExitCode : int {
  kOk = 0,
  kUsage = 2,           // usage, configuration, ranks disagree
  kBadData = 65,        // data set, tokenizer or checkpoint that cannot be used
  kBug = 70,            // internal error
  kCommunication = 71,  // a collective failed or timed out
  kResources = 72,      // memory, threads or open files ran out
  kPreCheckpoint = 73,  // a write before step 1 failed: the checkpoint, the record of the run
  kSaveFailed = 74,     // input/output error in a later save, or writing in a tool
  kStoppedSaved = 75,   // stopped by TERM or USR1 with the state saved
  kHardware = 76,       // a GPU failed
  kNonFinite = 93,      // non-finite loss or gradient norm: do not requeue
  kInterrupted = 130,   // Ctrl-C
  kTerminated = 143,    // TERM without checkpointing
};

// An error with its exit code. what() is one complete message for the user: who, where, what to do.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

// Throwing functions for exit codes: throw_config("seq_len is {}, expected a multiple of {}", a, b).
#define HYPERION_DEFINE_THROWER(function, exit_code)                               \
  template <typename... Args>                                                      \
  [[noreturn]] void function(fmt::format_string<Args...> format, Args&&... args) { \
    throw Error(exit_code, fmt::format(format, std::forward<Args>(args)...));      \
  }
HYPERION_DEFINE_THROWER(throw_config, ExitCode::kUsage)
HYPERION_DEFINE_THROWER(throw_data, ExitCode::kBadData)
HYPERION_DEFINE_THROWER(throw_bug, ExitCode::kBug)
HYPERION_DEFINE_THROWER(throw_comm, ExitCode::kCommunication)
HYPERION_DEFINE_THROWER(throw_pre_checkpoint, ExitCode::kPreCheckpoint)
HYPERION_DEFINE_THROWER(throw_save_failed, ExitCode::kSaveFailed)
HYPERION_DEFINE_THROWER(throw_non_finite, ExitCode::kNonFinite)
#undef HYPERION_DEFINE_THROWER

}  // namespace hyperion
