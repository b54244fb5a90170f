#include "checkpoint/staging_pool.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include <catch2/catch.hpp>
#include <sys/mman.h>

#include "base/clock.h"

namespace hyperion::checkpoint {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kBytes = uint64_t{16} << 20;

class PinnedMover : public MemoryMover {
 public:
  bool allocates_pinned() const override { return true; }
};

// As the system says.
uint64_t pages_with_memory(const StagingPool& pool) {
  std::vector<unsigned char> pages(pool.bytes() / 4096);
  REQUIRE(::mincore(pool.memory().get(), pool.bytes(), pages.data()) == 0);
  return static_cast<uint64_t>(std::ranges::count_if(pages, [](unsigned char page) { return page & 1; }));
}

}  // namespace

TEST_CASE("a pool gets its memory in the background, before it is used") {
  MemoryMover mover;
  StagingPool pool(mover);
  pool.reserve(kBytes);
  CHECK(pages_with_memory(pool) == 0);
  pool.touch_in_background();
  const auto begin = std::chrono::steady_clock::now();
  while (pages_with_memory(pool) < kBytes / 4096 && seconds_since(begin) < 60)
    std::this_thread::sleep_for(1ms);
  CHECK(pages_with_memory(pool) == kBytes / 4096);
}

TEST_CASE("a pool that is used is not touched any more, however far that came") {
  MemoryMover mover;
  for (int round = 0; round < 20; ++round) {
    StagingPool pool(mover);
    pool.reserve(kBytes);
    pool.touch_in_background();
    std::this_thread::sleep_for(round * 100us);
    pool.reserve(kBytes);
    std::memset(pool.memory().get(), 1, kBytes);
    std::this_thread::sleep_for(1ms);
    CHECK(std::count(pool.memory().get(), pool.memory().get() + kBytes, std::byte{1}) == kBytes);
  }
}

TEST_CASE("a pool grows, never shrinks, and is empty when there is no memory for it") {
  MemoryMover mover;
  StagingPool pool(mover);
  pool.touch_in_background();  // of nothing
  pool.reserve(1000);
  pool.touch_in_background();
  const std::shared_ptr<std::byte> first = pool.memory();
  pool.reserve(100);
  CHECK((pool.bytes() == 1000 && pool.memory() == first));
  pool.reserve(kBytes);
  CHECK((pool.bytes() == kBytes && pool.memory() != first));
  CHECK_THROWS_AS(pool.reserve(uint64_t{1} << 62), std::bad_alloc);
  CHECK((pool.bytes() == 0 && pool.memory() == nullptr));
}

TEST_CASE("a pool of pinned memory, which is complete from the start, is not touched") {
  PinnedMover mover;
  StagingPool pool(mover);
  pool.reserve(kBytes);
  pool.touch_in_background();
  std::this_thread::sleep_for(20ms);
  CHECK(pages_with_memory(pool) == 0);  // this mover's is only called pinned
}

}  // namespace hyperion::checkpoint
