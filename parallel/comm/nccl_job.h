// What is particular to a job on GPUs: how it ends when one of libtorch's threads fails or a library aborts,
// and which variables of its environment cannot hold together.
#pragma once

#include <exception>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "parallel/job/environment.h"

namespace hyperion::parallel {

// What an exception means that leaves a thread of libtorch, as NCCL's watchdog, where no caller can catch it:
// kCommunication when a collective timed out or a peer was lost, kHardware for a GPU that failed, kBug for
// another error of CUDA.
// nullopt: neither; memory that ran out (base/resources.h) and bugs of the host are left to the handler
// before.
std::optional<ExitCode> code_of_thread_failure(const std::exception& error);

// From now on such an exception ends the process with its own sentence and record, which say who was lost
// when communication has failed (FailureDetector::find_lost_ranks_of_process); a GPU that has failed
// (base/gpu_fault.h), and an abort inside the driver or NCCL, with kHardware.
void report_failures_of_threads();

// Variables that say two things at once, or what this program cannot do: a sentence each, with the values.
// `interfaces`: the names of this host's network interfaces.
struct VariableProblems {
  std::vector<std::string> refused, warned;
};
VariableProblems contradicting_variables(const EnvironmentLookup& lookup,
                                         const std::set<std::string>& interfaces);
// Of this process and host: logs the warnings, throws Error(kUsage) with what is refused.
void require_consistent_variables();

}  // namespace hyperion::parallel
