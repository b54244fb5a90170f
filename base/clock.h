// Times are in seconds, as a double.
#pragma once

#include <chrono>

namespace hyperion {

// Seconds since `begin`, by the monotonic clock.
inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Seconds since 1970-01-01 00:00 UTC.
inline double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace hyperion
