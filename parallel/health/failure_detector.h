// Answers which ranks were lost, and ends this one where nothing else does it in time. A rank is lost when
// its process has ended without a word, when it has said that it fails, or when it does not answer: the first
// two come over connections (rank_links.h), the last from the store of the rendezvous (failure_reports.h),
// where the ranks whose operation has failed look for the others. docs/architecture.md has a picture.
//
// Over Gloo and shared memory an operation fails by itself, and the detector says because of whom. Over NCCL
// a collective that a lost rank never joins runs on the device, the host waits for it in some call, and
// NCCL's watchdog gives up when the timeout has passed, if it knows the collective at all: the detector ends
// the rank.
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
  using End = RankLinks::End;  // the others go on without a rank that is done

  // Collective. `ends_process`: this rank is ended when another one has been lost, but not while it may be
  // asking the others by whom an operation has failed, who answer within `response_timeout`. Throws
  // Error(kCommunication) naming a rank that has not come within `timeout`.
  FailureDetector(c10::intrusive_ptr<c10d::Store> store, const Environment& environment,
                  std::chrono::milliseconds timeout,
                  std::chrono::milliseconds response_timeout = kPeerResponseTimeout,
                  bool ends_process = true);
  // Leaves: as failed while an exception is on its way.
  ~FailureDetector();
  FailureDetector(const FailureDetector&) = delete;
  FailureDetector& operator=(const FailureDetector&) = delete;

  // Sends the others how this rank ends, and stops watching them. The first call counts.
  void leave(End end);
  // The ranks that have ended without a word; looks for up to `timeout` until there is one.
  std::vector<int> ended_ranks(std::chrono::milliseconds timeout);
  // Once `operation` over the ranks of `group` has failed: whom that is because of. Takes a few seconds more
  // than the response timeout at most; never throws.
  PostMortem find_lost_ranks(const std::vector<int>& group, const std::string& operation,
                             const std::string& phase);
  // The same of all ranks, for a thread that ends the process because a collective has failed; the others are
  // notified at once that this rank fails. Says nothing where this process has no detector.
  static PostMortem find_lost_ranks_of_process(const std::string& phase);

 private:
  void watch();
  void update();
  [[noreturn]] void end_process();

  const c10::intrusive_ptr<c10d::Store> store_;
  const Environment environment_;
  const std::chrono::milliseconds response_timeout_;
  const bool ends_process_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  RankLinks links_;
  bool left_ = false;
  std::optional<LostRanks> lost_;  // the first
  std::chrono::steady_clock::time_point lost_at_;
  std::thread thread_;
};

}  // namespace hyperion::parallel
