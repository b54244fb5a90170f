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
  double own = seconds(begin_, *end_);
  for (const auto& [from, to] : waits_) own -= seconds(from, to);
  return own;
}

// On a GPU the backward runs on a thread of libtorch's while the one that trains waits for it, so the stream
// is what counts there.
RankWait::RankWait(c10::DeviceType device) : timer_(running_timer) {
  if (timer_ == nullptr) return;
  const bool own = timer_->device_.type() == device &&
                   (timer_->stream_ ? current_stream(timer_->device_) == timer_->stream_
                                    : std::this_thread::get_id() == timer_->thread_);
  if (!own) {
    timer_ = nullptr;
  } else if (timer_->depth_++ == 0) {
    begin_ = timer_->mark();
  }
}

void RankWait::done() {
  if (timer_ != nullptr && --timer_->depth_ == 0)
    timer_->waits_.emplace_back(std::move(begin_), timer_->mark());
}

}  // namespace hyperion::parallel
