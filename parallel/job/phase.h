// The phase says what the process is doing ("step 12 backward layers.3"), for messages about failures.
#pragma once

#include <string>
#include <string_view>

namespace hyperion::parallel {

// Sets the process-wide phase. Cheap and thread-safe. An empty phase is left out of messages.
void set_phase(std::string_view phase);
std::string current_phase();
// The phase in which the exception being reported was thrown: that of the innermost PhaseGuard it left, or
// the current phase if it left none.
std::string phase_of_failure();

// Sets a phase for a scope and restores the previous one, unless an exception leaves the scope: its message
// names the phase.
class PhaseGuard {
 public:
  explicit PhaseGuard(std::string_view phase);
  ~PhaseGuard();
  PhaseGuard(const PhaseGuard&) = delete;
  PhaseGuard& operator=(const PhaseGuard&) = delete;

 private:
  std::string former_;
  int exceptions_;  // in flight when the scope began
};

}  // namespace hyperion::parallel
