// Follows a training step from outside, by the ranges that it opens for the profiler
// (parallel/comm/trace_range.h).
#pragma once

#include <functional>
#include <string>
#include <utility>

#include <ATen/record_function.h>

namespace hyperion::parallel {

// While it lives, calls `started(name)` and `ended(name)` for each TraceRange of this thread, "forward
// layers.0". One at a time.
class TraceRangeListener {
 public:
  using Callback = std::function<void(const std::string& name)>;

  explicit TraceRangeListener(Callback started, Callback ended = {})
      : started_(std::move(started)), ended_(std::move(ended)) {
    current_ = this;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(
            [](const at::RecordFunction& range) -> std::unique_ptr<at::ObserverContext> {
              if (current_->started_) current_->started_(range.name());
              return nullptr;
            },
            [](const at::RecordFunction& range, at::ObserverContext*) {
              if (current_->ended_) current_->ended_(range.name());
            })
            .scopes({at::RecordScope::USER_SCOPE}));
  }
  ~TraceRangeListener() { at::removeCallback(handle_); }
  TraceRangeListener(const TraceRangeListener&) = delete;
  TraceRangeListener& operator=(const TraceRangeListener&) = delete;

 private:
  static inline TraceRangeListener* current_ = nullptr;
  Callback started_, ended_;
  at::CallbackHandle handle_;
};

}  // namespace hyperion::parallel
