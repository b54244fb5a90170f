// The rendezvous of a job's ranks: a store at MASTER_ADDR:MASTER_PORT, through which they check, before any
// process group exists, that all have joined and were started as the same job.
#pragma once

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "parallel/job/environment.h"
#include "parallel/job/fingerprint.h"

namespace c10d {
class Store;
}

namespace hyperion::parallel {

// Collective: rank 0 opens the store (unless torchrun's agent has), the others connect. Returns the store
// once every rank has joined with an `identity` equal to rank 0's. Else every rank that has joined throws
// the same error: Error(kUsage) naming the differences and their values, as soon as the first differing
// rank has joined; Error(kCommunication) naming the missing ranks after `timeout`. `response_timeout` is
// how long a rank that has joined may take to answer.
c10::intrusive_ptr<c10d::Store> join_ranks(const Environment& environment, const Fingerprint& identity,
                                           std::chrono::milliseconds timeout,
                                           std::chrono::milliseconds response_timeout = kPeerResponseTimeout);

// While a StoreWatch exists, a process other than rank 0 ends with ExitCode::kCommunication a little after
// `limit`: a call of the store does not return by itself if rank 0 hangs.
class StoreWatch {
 public:
  StoreWatch(const Environment& environment, std::chrono::milliseconds limit);

 private:
  std::jthread thread_;
};

// Returns whether all `keys` appear in the store within `timeout`.
bool wait_for_keys(c10d::Store& store, const std::vector<std::string>& keys,
                   std::chrono::milliseconds timeout);

// Tells the other ranks that this rank, not rank 0, ends before the rendezvous is complete, by a signal or
// its own error: the ranks that wait in join_ranks() end with Error(kCommunication) and `why`. Does nothing
// after the rendezvous or if rank 0 does not listen (yet). Takes a few seconds at most if hosts do not
// answer; never throws.
void leave_ranks(const Environment& environment, const std::string& why) noexcept;

}  // namespace hyperion::parallel
