#include "parallel/job/phase.h"

#include <exception>
#include <mutex>

namespace hyperion::parallel {
namespace {

struct Phase {
  std::mutex mutex;
  std::string text;
  std::string failed;  // innermost scope that an exception has left since the last set_phase()
};

Phase& phase() {
  static Phase* instance = new Phase;  // never destroyed: a watchdog thread may ask while the process ends
  return *instance;
}

}  // namespace

void set_phase(std::string_view text) {
  std::lock_guard lock(phase().mutex);
  phase().text.assign(text);  // keeps its capacity: no allocation in the steady state
  phase().failed.clear();
}

std::string current_phase() {
  std::lock_guard lock(phase().mutex);
  return phase().text;
}

std::string phase_of_failure() {
  std::lock_guard lock(phase().mutex);
  return phase().failed.empty() ? phase().text : phase().failed;
}

PhaseGuard::PhaseGuard(std::string_view phase)
    : former_(current_phase()), exceptions_(std::uncaught_exceptions()) {
  set_phase(phase);
}

PhaseGuard::~PhaseGuard() {
  std::lock_guard lock(phase().mutex);
  if (std::uncaught_exceptions() > exceptions_ && phase().failed.empty()) phase().failed = phase().text;
  phase().text = former_;
}

}  // namespace hyperion::parallel
