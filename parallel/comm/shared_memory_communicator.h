// A communicator for CPU tensors among ranks of one host. Every rank writes its messages into its own
// memory, which the others map: one copy in and one out (or a sum straight from the peers' memory), no
// threads, no sockets, sums in rank order. Transfers go through a mailbox of 2 MiB per ordered pair of
// ranks (parallel/comm/mailbox.h), which takes memory when it is first used.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "parallel/comm/communicator.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace hyperion::parallel {

// Collective over the group; `store` must be scoped to it. `mailbox_pieces` is the ring size of each
// mailbox, at most MailboxMemory::kPieces. Returns null on every rank if any rank cannot map the memory of
// another (separate PID namespaces): then use Gloo. `staged`: it also takes GPU tensors, which it moves
// through pinned memory.
std::unique_ptr<Communicator> make_shared_memory_communicator(std::string name, int rank,
                                                              std::vector<int> global_ranks,
                                                              c10d::Store& store,
                                                              std::chrono::milliseconds timeout,
                                                              uint32_t mailbox_pieces, bool staged = false);

}  // namespace hyperion::parallel
