// Runs loops over ranges on libtorch's compute threads. libtorch's own at::parallel_for is a template that
// is single-threaded in files compiled without OpenMP, which are all of ours but one.
#pragma once

#include <cstdint>

namespace hyperion {

// A loop body that several threads run as call(work, first, last).
struct RangeWork {
  void (*call)(const void* work, int64_t first, int64_t last);
  const void* work;
};
void run_on_threads(int64_t begin, int64_t end, int64_t grain, RangeWork work);

// Calls work(first, last) for ranges that together cover [begin, end), on at most at::get_num_threads()
// threads; each range but the last has at least `grain` elements. Returns when all are done; an exception
// of one is rethrown here. The split depends on the number of threads, so results must not depend on it.
// Runs on one thread inside another parallel region.
template <typename Work>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const Work& work) {
  run_on_threads(
      begin, end, grain,
      {[](const void* of, int64_t first, int64_t last) { (*static_cast<const Work*>(of))(first, last); },
       &work});
}

}  // namespace hyperion
