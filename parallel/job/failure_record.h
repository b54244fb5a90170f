// A failing rank writes one sentence to its own log, and rank_<N>.json to the folder named by
// HYPERION_FAILURE_DIR. The launcher summarizes these files for the job (scripts/failures.py).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "parallel/job/environment.h"

namespace hyperion::parallel {

// Sets this process's rank for every record and message below, and clears earlier records. Call it before
// anything can fail.
void set_own_rank(const Environment& environment);

// The operation by whose failure this rank learned that the job is broken.
struct FailedOperation {
  std::string operation;    // "all_reduce"
  int64_t number = 0;       // counts the group's operations, from 1
  std::string group;        // "fsdp/0"
  std::string phase;        // "step 12 forward layers.3"
  std::string cause;        // "rank 1 has ended"
  std::vector<int> lost{};  // ranks that do not answer, known after the post-mortem
};

// Remembers the operation and writes its record at once: the launcher may end this process at any moment
// now, and a GPU's communicator may hang during cleanup. Thread-safe. Only the first call counts, because
// later failures are consequences of the first.
void record_failed_operation(FailedOperation operation);
bool operation_failed();  // whether record_failed_operation() was called
// Adds the ranks that did not answer to the record of the failed operation.
void record_lost_ranks(std::vector<int> lost);

// Remembers the operation that this process started last, on any group. Over NCCL the host runs ahead of
// the device, so it is the newest operation that may be waiting. Thread-safe.
void set_newest_operation(const std::string& operation, int64_t number, const std::string& group);
// "all_gather, number 12 of group tp/0"; empty before the first.
std::string newest_operation();

// Writes the sentence to stderr and the record to its file; a failing process calls it last. The sentence
// names rank, host and phase if there are several ranks; a configuration refused before the rendezvous is
// the same on all ranks and is printed unchanged. Never throws; returns the exit code.
int report_failure(ExitCode code, const std::string& message);

// The sentence that report_failure() writes. Pure.
std::string failure_sentence(ExitCode code, const std::string& message, const Environment& environment,
                             const std::string& host, const std::string& phase);

}  // namespace hyperion::parallel
