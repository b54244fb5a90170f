// A TraceRange is a range in the profiler's traces, named after the program's work: "forward layers.3",
// "all-gather layers.4", "optimizer". docs/metrics.md lists the names.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include <ATen/record_function.h>

namespace hyperion::parallel {

// Covers the rest of the scope, on the training thread. Without a profiler it costs one look at
// thread-local state; the name is built only if it is recorded.
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
