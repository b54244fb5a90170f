// The FailureDetector says which ranks were lost, and ends this process if nothing else does in time. A
// rank is lost if its process has ended without a message, if it has reported its own failure, or if it
// does not answer. The first two arrive over connections (rank_links.h), the last comes from the rendezvous
// store (failure_reports.h), where ranks whose operation has failed look for the others.
// docs/architecture.md has a picture.
//
// Over Gloo and shared memory an operation fails by itself, and the detector says because of which rank.
// Over NCCL a collective that a lost rank never joins runs on the device, the host blocks in some call, and
// NCCL's watchdog gives up only after the timeout, if it knows the collective at all: so the detector ends
// the process.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "parallel/health/lost_ranks.h"
#include "parallel/health/rank_links.h"
#include "parallel/job/environment.h"

namespace c10d {
class Store;
}

namespace hyperion::parallel {

class FailureDetector {
 public:
  using End = RankLinks::End;  // other ranks continue without a rank that is done

  // Collective. `ends_process` ends this process after another rank was lost, except while it may be asking
  // the others, who answer within `response_timeout`, which rank made an operation fail. Throws
  // Error(kCommunication) naming a rank that has not joined within `timeout`.
  FailureDetector(c10::intrusive_ptr<c10d::Store> store, const Environment& environment,
                  std::chrono::milliseconds timeout,
                  std::chrono::milliseconds response_timeout = kPeerResponseTimeout,
                  bool ends_process = true);
  // Calls leave(), with kFailed while an exception is in flight.
  ~FailureDetector();
  FailureDetector(const FailureDetector&) = delete;
  FailureDetector& operator=(const FailureDetector&) = delete;

  // Tells the other ranks how this rank ends, and stops watching them. Only the first call counts.
  void leave(End end);
  // The ranks that have ended without a message. Polls for up to `timeout` until there is one.
  std::vector<int> ended_ranks(std::chrono::milliseconds timeout);
  // Finds the ranks because of which `operation` over `group` has failed. Takes at most the response
  // timeout and a few seconds more; never throws.
  PostMortem find_lost_ranks(const std::vector<int>& group, const std::string& operation,
                             const std::string& phase);
  // Finds the lost ones of all ranks in this way, for a thread that ends the process because a collective has
  // failed; the others are notified at once that this rank fails. Returns an empty result if this process has
  // no detector.
  static PostMortem find_lost_ranks_of_process(const std::string& phase);

 private:
  void watch();
  void update();
  [[noreturn]] void end_process();

  const c10::intrusive_ptr<c10d::Store> store_;
  const Environment environment_;
  const std::chrono::milliseconds response_timeout_;
  const bool ends_process_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  RankLinks links_;
  bool left_ = false;
  std::optional<LostRanks> lost_;  // the first ones detected
  std::chrono::steady_clock::time_point lost_at_;
  std::thread thread_;
};

}  // namespace hyperion::parallel
