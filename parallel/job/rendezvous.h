// How the ranks of a job meet: a store at MASTER_ADDR:MASTER_PORT, in which they find out whether all are
// there and whether they were started as the same job, before any group is made.
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

// Collective: rank 0 opens the store (unless torchrun's agent has), the others connect. Returns it when every
// rank has joined with `identity` equal to rank 0's. Else every rank that has joined throws the same error:
// Error(kUsage) naming what differs, with the values, as soon as the first such rank has joined;
// Error(kCommunication) naming the ranks that are missing after `timeout`. `response_timeout`: of a rank that
// has joined, to answer.
c10::intrusive_ptr<c10d::Store> join_ranks(const Environment& environment, const Fingerprint& identity,
                                           std::chrono::milliseconds timeout,
                                           std::chrono::milliseconds response_timeout = kPeerResponseTimeout);

// While it exists, this process, if it is not rank 0, ends with ExitCode::kCommunication when a little more
// than `limit` has passed: a call of the store does not return by itself when rank 0 stands still.
class StoreWatch {
 public:
  StoreWatch(const Environment& environment, std::chrono::milliseconds limit);

 private:
  std::jthread thread_;
};

// Whether all `keys` are in the store before `timeout` is over.
bool wait_for_keys(c10d::Store& store, const std::vector<std::string>& keys,
                   std::chrono::milliseconds timeout);

// Of a rank other than 0 that ends before the ranks have met, by a signal or an error of its own: those that
// wait in join_ranks() end with Error(kCommunication) and `why`. Does nothing when they have met or rank 0
// does not listen (yet). Takes a few seconds at most where hosts do not answer; never throws.
void leave_ranks(const Environment& environment, const std::string& why) noexcept;

}  // namespace hyperion::parallel
