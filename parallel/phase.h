// What the process is doing right now ("step 12 backward layers.3"), for messages about what failed.
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace hyperion {

// Sets the process-wide phase: cheap, callable from any thread. Empty = nothing to say.
void set_phase(std::string_view phase);
std::string current_phase();

// Sets a phase for a scope and restores the former one, unless an exception leaves the scope: its message
// names the phase.
class PhaseGuard {
 public:
  explicit PhaseGuard(std::string_view phase) : former_(current_phase()) { set_phase(phase); }
  ~PhaseGuard() {
    if (std::uncaught_exceptions() == exceptions_) set_phase(former_);
  }
  PhaseGuard(const PhaseGuard&) = delete;
  PhaseGuard& operator=(const PhaseGuard&) = delete;

 private:
  std::string former_;
  const int exceptions_ = std::uncaught_exceptions();
};

}  // namespace hyperion
