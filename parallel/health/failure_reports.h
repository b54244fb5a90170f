// Failure reports tell ranks about each other through the rendezvous store after an operation has failed.
// Every failing rank writes a report; the first of them (or another, if the first is lost too) names the
// ranks without one. Each rank makes four requests, whatever the number of ranks; the first one makes a few
// more.
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

// Reports the failed `operation` over `group`. A rank of `group` that writes no report within
// `response_timeout` (comm.peer_response_timeout_seconds) is lost. If this rank knows that some have
// `ended`, it does not wait for them, writes its report, and returns an empty result. Takes at most four
// seconds more (rank 0, which serves the store, also half of `response_timeout`), not counting time during
// which the process is suspended; never throws.
PostMortem exchange_failure_reports(const c10::intrusive_ptr<c10d::Store>& store, int own_rank,
                                    const std::vector<int>& group, const std::string& operation,
                                    const std::string& phase, std::chrono::milliseconds response_timeout,
                                    const std::vector<int>& ended = {});

// The three steps of exchange_failure_reports(). They throw what the store throws.
// Returns the rank that collects the reports: the first that wrote one.
int leave_failure_report(c10d::Store& store, int own_rank, const std::vector<int>& group,
                         const std::string& report);
// Runs on the collecting rank: publishes which ranks have failed and which ranks of their groups wrote no
// report. It publishes before `timeout` only if none but the `ended` ones is missing. Ranks are in
// ascending order.
void collect_failure_reports(c10d::Store& store, std::chrono::milliseconds timeout,
                             const std::vector<int>& ended = {});
// Runs on every rank; leaves out the rank itself. If `collector` has published nothing within `timeout`,
// the first rank that notices collects, and names `collector` if no rank is missing.
PostMortem read_failure_reports(c10d::Store& store, int own_rank, int collector,
                                std::chrono::milliseconds timeout);

}  // namespace hyperion::parallel
