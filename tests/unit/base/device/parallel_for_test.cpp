// Loops over ranges on several threads.
#include "base/device/parallel_for.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include <ATen/Parallel.h>

namespace hyperion {
namespace {

// Sets the number of threads of libtorch's operations, and back.
class Threads {
 public:
  explicit Threads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

}  // namespace

TEST_CASE("a loop runs on as many threads as libtorch computes with") {
  for (const int count : {1, 2, 3}) {
    const Threads threads(count);
    // Each range waits for the others that must run at the same time.
    std::atomic<int> arrived = 0;
    std::atomic<bool> all_arrived = true;
    parallel_for(0, count, 1, [&](int64_t first, int64_t last) {
      arrived += static_cast<int>(last - first);
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(120);
      while (arrived < count) {
        std::this_thread::yield();
        if (std::chrono::steady_clock::now() > limit) {
          all_arrived = false;
          return;
        }
      }
    });
    CHECK(all_arrived);
  }
}

TEST_CASE("a loop reaches each element once and what its threads wrote is there") {
  const Threads threads(3);
  for (const int64_t count : {0, 1, 2, 7, 100, 1001})
    for (const int64_t grain : {1, 3, 64, 5000}) {
      std::vector<int> reached(static_cast<size_t>(count) + 5);
      std::atomic<bool> short_range = false;
      parallel_for(5, count + 5, grain, [&](int64_t first, int64_t last) {
        if (last - first < grain && last != count + 5) short_range = true;
        for (int64_t i = first; i < last; ++i) ++reached[static_cast<size_t>(i)];
      });
      CAPTURE(count, grain);
      CHECK_FALSE(short_range);
      for (int64_t i = 0; i < count + 5; ++i) CHECK(reached[static_cast<size_t>(i)] == (i < 5 ? 0 : 1));
    }
}

TEST_CASE("an exception of one range leaves the loop and the next loop runs") {
  const Threads threads(2);
  const auto fails = [](int64_t first, int64_t last) {
    if (first <= 70 && 70 < last) throw std::runtime_error("seventy");
  };
  CHECK_THROWS_WITH(parallel_for(0, 100, 1, fails), "seventy");
  std::atomic<int64_t> sum = 0;
  parallel_for(0, 100, 1, [&](int64_t first, int64_t last) { sum += last - first; });
  CHECK(sum == 100);
}

TEST_CASE("a loop inside a loop stays in its thread") {
  const Threads threads(2);
  std::atomic<bool> stays = true;
  parallel_for(0, 8, 1, [&](int64_t, int64_t) {
    const auto own = std::this_thread::get_id();
    parallel_for(0, 100, 1, [&](int64_t, int64_t) {
      if (std::this_thread::get_id() != own) stays = false;
    });
  });
  CHECK(stays);
}

}  // namespace hyperion
