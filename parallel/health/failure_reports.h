// What the ranks of a job find out about each other in the store of the rendezvous once an operation has
// failed: every rank that fails leaves a report there, and the first of them (if it is lost too, another)
// names the ranks that leave none. Four requests per rank, whatever the number of ranks; the first one asks a
// few times more.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "parallel/health/lost_ranks.h"

namespace c10d {
class Store;
}

namespace hyperion::parallel {

// Of a rank whose `operation` over the ranks of `group` has failed: a rank of it that leaves no report within
// `response_timeout` (comm.peer_response_timeout_seconds) is lost. Where the rank knows that some have
// `ended`, it waits for none of those, leaves its report, and returns nothing. Takes four seconds more at
// most (rank 0, which holds the store, half of `response_timeout` more as well), not counting times for which
// the process stands still; never throws.
PostMortem exchange_failure_reports(const c10::intrusive_ptr<c10d::Store>& store, int own_rank,
                                    const std::vector<int>& group, const std::string& operation,
                                    const std::string& phase, std::chrono::milliseconds response_timeout,
                                    const std::vector<int>& ended = {});

// Its three parts. They throw what the store throws.
// Returns the rank that collects the reports: the first one that has left one.
int leave_failure_report(c10d::Store& store, int own_rank, const std::vector<int>& group,
                         const std::string& report);
// On that rank: publishes who has failed and which ranks of their groups have left no report; before
// `timeout` is over only when none is missing but `ended` ones, in order of their numbers.
void collect_failure_reports(c10d::Store& store, std::chrono::milliseconds timeout,
                             const std::vector<int>& ended = {});
// On every rank; the rank itself is left out. When `collector` has published nothing within `timeout`, the
// first rank that notices collects, and where no rank is missing names `collector`.
PostMortem read_failure_reports(c10d::Store& store, int own_rank, int collector,
                                std::chrono::milliseconds timeout);

}  // namespace hyperion::parallel
