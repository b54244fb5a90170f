#include "base/device/parallel_for.h"

#include <algorithm>
#include <atomic>
#include <exception>

#include <ATen/Parallel.h>

#include "base/device/openmp.h"

namespace hyperion {
namespace {

struct ParallelLoop {
  std::atomic<int64_t> taken = 0;  // ranges; also what makes the other fields visible to a thread
  int64_t begin, end, each, count;
  RangeWork work;
  std::atomic<bool> failed = false;
  std::exception_ptr error{};
  std::atomic<int> left = 0;  // threads that are done

  void run() {
    for (int64_t range; (range = taken.fetch_add(1, std::memory_order_acq_rel)) < count;) {
      const int64_t first = begin + range * each;
      try {
        work.call(work.work, first, std::min(end, first + each));
      } catch (...) {
        if (!failed.exchange(true)) error = std::current_exception();
      }
    }
    left.fetch_add(1, std::memory_order_release);
  }
};

}  // namespace

void run_on_threads(int64_t begin, int64_t end, int64_t grain, RangeWork work) {
  if (begin >= end) return;
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const int64_t most = std::max<int64_t>(1, (end - begin) / std::max<int64_t>(1, grain));
  if (threads == 1 || most == 1) {
    work.call(work.work, begin, end);
    return;
  }
  // A thread that another program holds up leaves ranges to the others.
  constexpr int64_t kRangesPerThread = 4;
  const int64_t ranges = std::min(most, kRangesPerThread * threads);
  const int64_t each = (end - begin + ranges - 1) / ranges;
  ParallelLoop loop{
      .begin = begin, .end = end, .each = each, .count = (end - begin + each - 1) / each, .work = work};
  call_on_openmp_threads([](void* of) { static_cast<ParallelLoop*>(of)->run(); }, &loop);
  loop.left.load(std::memory_order_acquire);  // what they wrote is visible from here on
  if (loop.error) std::rethrow_exception(loop.error);
}

}  // namespace hyperion
