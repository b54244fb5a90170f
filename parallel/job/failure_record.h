// What a rank that fails leaves behind: one sentence in its own log, and rank_<N>.json in the folder that
// HYPERION_FAILURE_DIR names. From these files the launcher makes one summary of the job
// (scripts/failures.py).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "parallel/job/environment.h"

namespace hyperion::parallel {

// Which rank this process is, for every record and message below; forgets what was recorded. Called before
// anything can fail.
void set_own_rank(const Environment& environment);

// The operation with which a rank noticed that the job is broken.
struct FailedOperation {
  std::string operation;    // "all_reduce"
  int64_t number = 0;       // of the group's operations, from 1
  std::string group;        // "fsdp/0"
  std::string phase;        // "step 12 forward layers.3"
  std::string cause;        // "rank 1 has ended"
  std::vector<int> lost{};  // ranks that do not answer, once they have been asked
};

// Remembers the operation and writes a record of it at once: whoever started the ranks may end this one at
// any moment now, and a GPU's communicator may hang on the way out. Callable from any thread; the first one
// counts, because those that follow are its consequence.
void record_failed_operation(FailedOperation operation);
bool operation_failed();  // one has been remembered
// Adds the ranks that did not answer to the record of that operation.
void record_lost_ranks(std::vector<int> lost);

// The operation that this process has started last, on any group: where ranks exchange over NCCL the host
// runs ahead of the device, so it is the last one that may be waiting. Callable from any thread.
void set_newest_operation(const std::string& operation, int64_t number, const std::string& group);
// "all_gather, number 12 of group tp/0"; empty before the first.
std::string newest_operation();

// The last thing that a failing process calls: writes its sentence to stderr and its record. The sentence
// names rank, host and phase where there are several ranks; a configuration refused before they met is the
// same on all of them and is given as it is. Never throws; returns the exit code.
int report_failure(ExitCode code, const std::string& message);

// The sentence alone (pure).
std::string failure_sentence(ExitCode code, const std::string& message, const Environment& environment,
                             const std::string& host, const std::string& phase);

}  // namespace hyperion::parallel
