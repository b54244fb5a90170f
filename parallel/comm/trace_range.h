// Ranges of the profiler's traces, named after what the program does: "forward layers.3", "all-gather
// layers.4", "optimizer". docs/metrics.md lists them.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include <ATen/record_function.h>

namespace hyperion::parallel {

// A range from here to the end of the scope, on the thread that trains. Without a profiler it costs one look
// at thread-local state: the name is put together only where somebody records it.
class TraceRange {
 public:
  explicit TraceRange(const char* what, const std::string* unit = nullptr) {
    auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
    if (!callbacks) [[likely]]
      return;
    record_.emplace(std::move(*callbacks));
    record_->before(unit == nullptr ? std::string(what) : what + (" " + *unit));
  }
  TraceRange(const char* what, const std::string& unit) : TraceRange(what, &unit) {}
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;

 private:
  std::optional<at::RecordFunction> record_;
};

}  // namespace hyperion::parallel
