#include "parallel/comm/step_timer.h"

#include <atomic>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/error.h"

namespace hyperion::parallel {
namespace {

std::atomic<StepTimer*> running_timer = nullptr;

std::optional<c10::Stream> current_stream(c10::Device device) {
  if (device.is_cpu()) return std::nullopt;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

StepTimer::StepTimer(c10::Device device) : device_(device), stream_(current_stream(device)), begin_(mark()) {
  StepTimer* none = nullptr;
  if (!running_timer.compare_exchange_strong(none, this)) throw_bug("a second StepTimer in one process");
}

StepTimer::~StepTimer() {
  running_timer = nullptr;
}

void StepTimer::stop() {
  running_timer = nullptr;
  end_ = mark();
}

StepTimer::Mark StepTimer::mark() const {
  Mark mark{std::chrono::steady_clock::now(), std::nullopt};
  if (stream_) {
    mark.event.emplace(stream_->device_type(), c10::EventFlag::BACKEND_DEFAULT);  // with a time
    mark.event->record(*stream_);
  }
  return mark;
}

double StepTimer::seconds(const Mark& from, const Mark& to) {
  if (from.event) return from.event->elapsedTime(*to.event) / 1e3;
  return std::chrono::duration<double>(to.time - from.time).count();
}

double StepTimer::own_seconds() const {
  double work = seconds(begin_, *end_);
  for (const Wait& wait : waits_) work -= seconds(wait.from, wait.to);
  return work;
}

double StepTimer::schedule_seconds() const {
  return schedule_ ? seconds(schedule_->first, schedule_->second) : 0;
}

double StepTimer::transfer_wait_seconds() const {
  double waited = 0;
  for (const Wait& wait : waits_)
    if (wait.for_transfer) waited += seconds(wait.from, wait.to);
  return waited;
}

// On a GPU the backward runs on a thread of libtorch's while the training thread waits for it, so there the
// stream identifies the timer.
StepTimer* StepTimer::running(c10::DeviceType device) {
  StepTimer* timer = running_timer;
  if (timer == nullptr) return nullptr;
  const bool matches =
      timer->device_.type() == device && (timer->stream_ ? current_stream(timer->device_) == timer->stream_
                                                         : std::this_thread::get_id() == timer->thread_);
  return matches ? timer : nullptr;
}

RankWait::RankWait(c10::DeviceType device, For what) : timer_(StepTimer::running(device)), what_(what) {
  if (timer_ != nullptr && timer_->depth_++ == 0) begin_ = timer_->mark();
}

void RankWait::done() {
  if (timer_ != nullptr && --timer_->depth_ == 0)
    timer_->waits_.push_back({std::move(begin_), timer_->mark(), what_ == For::kTransfer});
}

ScheduleSpan::ScheduleSpan(c10::DeviceType device) : timer_(StepTimer::running(device)) {
  if (timer_ != nullptr) begin_ = timer_->mark();
}

void ScheduleSpan::done() {
  if (timer_ != nullptr) timer_->schedule_.emplace(std::move(begin_), timer_->mark());
}

}  // namespace hyperion::parallel
