#include "parallel/phase.h"

#include <mutex>

namespace hyperion {
namespace {

struct Phase {
  std::mutex mutex;
  std::string text;
};

Phase& phase() {
  static Phase* instance = new Phase;  // never destroyed: a watchdog thread may ask while the process ends
  return *instance;
}

}  // namespace

void set_phase(std::string_view text) {
  std::lock_guard lock(phase().mutex);
  phase().text.assign(text);  // keeps its capacity: no allocation in the steady state
}

std::string current_phase() {
  std::lock_guard lock(phase().mutex);
  return phase().text;
}

}  // namespace hyperion
