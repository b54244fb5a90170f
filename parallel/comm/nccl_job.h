// Failures of jobs on GPUs: how the process ends when one of libtorch's threads fails or a library aborts,
// and which environment variables contradict each other.
#pragma once

#include <exception>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "parallel/job/environment.h"

namespace hyperion::parallel {

// The exit code for an exception that escapes a thread of libtorch, such as NCCL's watchdog, where no
// caller can catch it: kCommunication if a collective timed out or a peer was lost, kHardware if a GPU
// failed, kBug for another CUDA error. nullopt for exhausted memory (base/resources.h) and host bugs, which
// the previous terminate handler reports.
std::optional<ExitCode> code_of_thread_failure(const std::exception& error);

// Installs handlers. Such an exception then ends the process with its own message and failure record, which
// name the lost ranks if communication failed (FailureDetector::find_lost_ranks_of_process). A GPU failure
// (base/gpu_fault.h) and an abort inside the driver or NCCL end it with kHardware.
void report_failures_of_threads();

// Environment variables that contradict each other, or request something this program cannot do: one
// sentence each, with the values. `interfaces` are the names of this host's network interfaces.
struct VariableProblems {
  std::vector<std::string> refused, warned;
};
VariableProblems contradicting_variables(const EnvironmentLookup& lookup,
                                         const std::set<std::string>& interfaces);
// Checks this process and host: logs the warnings, throws Error(kUsage) with the refusals.
void require_consistent_variables();

}  // namespace hyperion::parallel
