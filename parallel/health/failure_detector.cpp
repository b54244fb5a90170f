#include "parallel/health/failure_detector.h"

#include <exception>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/rank_list.h"
#include "parallel/health/failure_reports.h"
#include "parallel/job/failure_record.h"
#include "parallel/job/phase.h"

namespace hyperion::parallel {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds, std::chrono::seconds;

constexpr milliseconds kPoll{200};
// The time in which a rank should end by itself, with a more precise message than this detector's, after
// another one ended without a message.
constexpr seconds kAfterLoss{2};
// The same, if an operation of this rank has failed by it already: beyond the response timeout, because
// find_lost_ranks() takes that long and some seconds more.
constexpr seconds kWhileFailing{6};
// The time after another rank failed, for a reason that this rank may be about to find as well.
constexpr seconds kAfterFailure{8};

std::mutex current_mutex;
FailureDetector* current = nullptr;  // of this process; guarded by current_mutex

}  // namespace

FailureDetector::FailureDetector(c10::intrusive_ptr<c10d::Store> store, const Environment& environment,
                                 milliseconds timeout, milliseconds response_timeout, bool ends_process)
    : store_(std::move(store)),
      environment_(environment),
      response_timeout_(response_timeout),
      ends_process_(ends_process),
      // A rank that continues would keep a false verdict for ever.
      links_(*store_, environment, timeout, /*timeout_is_loss=*/ends_process) {
  {
    const std::lock_guard lock(current_mutex);
    current = this;
  }
  if ((ends_process_ && links_.connected()) || links_.relays()) thread_ = std::thread([this] { watch(); });
}

FailureDetector::~FailureDetector() {
  {
    const std::lock_guard lock(current_mutex);
    current = nullptr;
  }
  leave(std::uncaught_exceptions() > 0 ? End::kFailed : End::kDone);
  if (thread_.joinable()) thread_.join();
}

void FailureDetector::leave(End end) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(left_, true)) return;
  links_.send(end);
  changed_.notify_all();
}

std::vector<int> FailureDetector::ended_ranks(milliseconds timeout) {
  std::unique_lock lock(mutex_);
  constexpr milliseconds kTick{50};  // counted: on a busy host the time may be over before the first look
  for (milliseconds left = timeout;; left -= kTick) {
    update();
    if (lost_ && !lost_->failed) return lost_->ranks;
    if (left <= milliseconds(0)) return {};
    changed_.wait_for(lock, kTick);
  }
}

PostMortem FailureDetector::find_lost_ranks(const std::vector<int>& group, const std::string& operation,
                                            const std::string& phase) {
  // The connections know it without the store, which a lost rank 0 would have taken along.
  std::vector<int> ended = ended_ranks(milliseconds(500));
  PostMortem answer;
  // Ranks of other hosts read in the store which ranks have failed, and would miss this one.
  if (ended.empty() || (!environment_.single_host() && ended.front() != 0))
    answer = exchange_failure_reports(store_, environment_.rank, group, operation, phase, response_timeout_,
                                      ended);
  if (ended.empty()) ended = ended_ranks(milliseconds(0));  // another host may have reported it meanwhile
  if (ended.empty()) return answer;
  return {"", ended, fmt::format("rank {} is lost: see its log first", rank_list(ended))};
}

PostMortem FailureDetector::find_lost_ranks_of_process(const std::string& phase) {
  const std::lock_guard lock(current_mutex);
  if (current == nullptr) return {};
  {
    const std::lock_guard links_lock(current->mutex_);
    current->links_.send(End::kFailed);  // sent first, because the search may take seconds
  }
  return current->find_lost_ranks(first_ranks(current->environment_.world_size), "a collective", phase);
}

void FailureDetector::watch() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kPoll, [this] { return left_; })) {
    update();
    if (!lost_ || !ends_process_) continue;
    const milliseconds time_to_end = lost_->failed        ? response_timeout_ + kAfterFailure
                                     : operation_failed() ? response_timeout_ + kWhileFailing
                                                          : kAfterLoss;
    if (Clock::now() - lost_at_ > time_to_end) end_process();
  }
}

// If ranks end at the same time, those that report a failure do so because of those that do not.
void FailureDetector::update() {
  const LostRanks lost = links_.poll();
  if (lost.ranks.empty() || (lost_ && (lost.failed || !lost_->failed))) return;
  lost_ = lost;
  lost_at_ = Clock::now();
  changed_.notify_all();
}

// Nothing may wait for the GPU any more, which the main thread does: so no exception and no destructor
// runs.
void FailureDetector::end_process() {
  links_.send(End::kFailed);  // else the others would take this rank for the lost one
  const std::string why =
      fmt::format("rank {} has {}", rank_list(lost_->ranks), lost_->failed ? "failed" : "ended");
  record_failed_operation({"", 0, "", current_phase(), why, lost_->ranks});
  if (!lost_->failed) record_lost_ranks(lost_->ranks);  // for an operation that has already failed
  spdlog::default_logger()->flush();
  const std::string newest = newest_operation();
  ::_exit(report_failure(
      ExitCode::kCommunication,
      fmt::format("{}, and this rank waits for it: see its log first{}", why,
                  newest.empty() ? "" : fmt::format(" (the operation started last: {})", newest))));
}

}  // namespace hyperion::parallel
