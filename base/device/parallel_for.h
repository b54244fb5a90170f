// Loops over ranges on the threads that libtorch computes with. libtorch's own at::parallel_for is a template
// that runs in one thread where the file that calls it is compiled without OpenMP, as all of ours but one
// are.
#pragma once

#include <cstdint>

namespace hyperion {

// A call of `call(work, first, last)`, which a loop over ranges makes on several threads.
struct RangeWork {
  void (*call)(const void* work, int64_t first, int64_t last);
  const void* work;
};
void run_on_threads(int64_t begin, int64_t end, int64_t grain, RangeWork work);

// Calls work(first, last) for ranges that together are [begin, end), on at most at::get_num_threads()
// threads; a range has at least `grain` elements, but for the last. Returns when all have been run; an
// exception of one is thrown here. Where ranges are cut depends on the number of threads: results must not
// depend on it. In one thread inside another parallel region.
template <typename Work>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const Work& work) {
  run_on_threads(
      begin, end, grain,
      {[](const void* of, int64_t first, int64_t last) { (*static_cast<const Work*>(of))(first, last); },
       &work});
}

}  // namespace hyperion
