// What the ranks of a job find out about each other once an operation has failed: every rank that fails
// leaves a note in the store of the rendezvous, and the first of them (if it is lost too, another) names the
// ranks that leave none. Four requests per rank, whatever the number of ranks; the first one asks a few times
// more.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "parallel/communicator.h"

namespace c10d {
class Store;
}

namespace hyperion::parallel {

// The post-mortem of a rank whose `operation` over the ranks of `group` has failed: a rank of it that does
// not answer within `response_timeout` (comm.peer_response_timeout_seconds) is silent. Where the rank knows
// which ranks are `lost`, it waits for no answer of those, leaves its note, and returns nothing. Takes
// four seconds more at most (rank 0, which holds the store, half of `response_timeout` more as well), not
// counting times for which the process stands still; never throws.
Communicator::PostMortem ask_others(const c10::intrusive_ptr<c10d::Store>& store, int own_rank,
                                    const std::vector<int>& group, const std::string& operation,
                                    const std::string& phase, std::chrono::milliseconds response_timeout,
                                    const std::vector<int>& lost = {});

// Its three parts. They throw what the store throws.
// Returns the rank that collects the notes: the first one that has left one.
int leave_failure_note(c10d::Store& store, int own_rank, const std::vector<int>& group,
                       const std::string& note);
// On that rank: publishes who has failed and which ranks of their groups are silent; before `patience` is
// over only when none is but those of `lost`, in order of their numbers.
void collect_failure_notes(c10d::Store& store, std::chrono::milliseconds patience,
                           const std::vector<int>& lost = {});
// On every rank, as text and silent ranks; the rank itself is left out. When `collector` has published
// nothing within `patience`, the first rank that notices collects, and where no rank is silent names
// `collector`.
Communicator::PostMortem read_failure_notes(c10d::Store& store, int own_rank, int collector,
                                            std::chrono::milliseconds patience);

}  // namespace hyperion::parallel
