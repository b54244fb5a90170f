// Processor time of works on a CPU.
#pragma once

#include <ctime>

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include <ATen/Parallel.h>

namespace hyperion {

inline double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Processor seconds of the process for one call, divided by the threads: the least of interleaved rounds.
// Other programs on the machine hardly change them, and threads that wait for each other count. A round makes
// calls for 0.1 s and more, because the system adds what other threads take to the process only every few
// milliseconds: of one short call the time of the other threads may lack.
inline std::vector<double> least_seconds(const std::vector<std::function<void()>>& works, int rounds) {
  std::vector<double> least(works.size(), std::numeric_limits<double>::infinity());
  for (int round = -1; round < rounds; ++round)
    for (size_t i = 0; i < works.size(); ++i) {
      const double begin = processor_seconds();
      double seconds = 0;
      int calls = 0;
      while (seconds < 0.1) {
        works[i]();
        ++calls;
        seconds = (processor_seconds() - begin) / at::get_num_threads();
      }
      if (round >= 0) least[i] = std::min(least[i], seconds / calls);
    }
  return least;
}

}  // namespace hyperion
