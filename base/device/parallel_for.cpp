#include "base/device/parallel_for.h"

#include <algorithm>
#include <atomic>
#include <exception>

#include <ATen/Parallel.h>

#include "base/device/openmp.h"

namespace hyperion {
namespace {

struct ParallelLoop {
  int64_t begin, end, each, count;
  RangeWork work;
  std::atomic<bool> failed = false;
  std::exception_ptr error{};
};

// The state that the threads of a loop share. Each starting thread owns one, because it runs one loop at a
// time.
struct Team {
  std::atomic<int64_t> taken = 0;  // number of ranges taken; a thread sees `loop` once it has taken one
  std::atomic<int> done = 0;       // number of threads that are done
  ParallelLoop* loop = nullptr;

  void run() {
    for (int64_t range; (range = taken.fetch_add(1, std::memory_order_acq_rel)) < loop->count;) {
      const int64_t first = loop->begin + range * loop->each;
      try {
        loop->work.call(loop->work.work, first, std::min(loop->end, first + loop->each));
      } catch (...) {
        if (!loop->failed.exchange(true)) loop->error = std::current_exception();
      }
    }
    done.fetch_add(1, std::memory_order_release);
  }
};
constinit thread_local Team own_team;

}  // namespace

void run_on_threads(int64_t begin, int64_t end, int64_t grain, RangeWork work) {
  if (begin >= end) return;
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const int64_t max_ranges = std::max<int64_t>(1, (end - begin) / std::max<int64_t>(1, grain));
  if (threads == 1 || max_ranges == 1) {
    work.call(work.work, begin, end);
    return;
  }
  // More ranges than threads: a slow thread takes fewer of them.
  constexpr int64_t kRangesPerThread = 4;
  const int64_t ranges = std::min(max_ranges, kRangesPerThread * threads);
  const int64_t each = (end - begin + ranges - 1) / ranges;
  ParallelLoop loop{
      .begin = begin, .end = end, .each = each, .count = (end - begin + each - 1) / each, .work = work};
  own_team.loop = &loop;
  own_team.taken.store(0, std::memory_order_release);
  call_on_openmp_threads([](void* team) { static_cast<Team*>(team)->run(); }, &own_team);
  own_team.done.load(std::memory_order_acquire);  // the threads' writes are visible from here on
  if (loop.error) std::rethrow_exception(loop.error);
}

}  // namespace hyperion
