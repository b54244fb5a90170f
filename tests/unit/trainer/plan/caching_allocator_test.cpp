#include "trainer/plan/caching_allocator.h"

#include <catch2/catch.hpp>

namespace hyperion::trainer {

TEST_CASE("The replayed allocator reuses the smallest block that holds a tensor, and grows its segment") {
  constexpr int64_t kMiB = 1 << 20;
  CachingAllocator memory;
  const auto allocate = [&](int64_t mebibytes, Content content = Content::kWorking) {
    return memory.allocate(static_cast<double>(mebibytes * kMiB), content);
  };
  CachingAllocator::Block first = allocate(30), second = allocate(5);
  allocate(25);                           // which stays
  CHECK(memory.reserved() == 60 * kMiB);  // pages of 20 MiB
  memory.free(first);
  CHECK_FALSE(first);
  CachingAllocator::Block fourth = allocate(10), fifth = allocate(20);  // both where the first was
  CHECK(memory.reserved() == 60 * kMiB);
  CHECK(fifth.start == 10 * kMiB);
  // Free blocks of 10 and 5 MiB that do not touch hold no tensor of 15: the segment grows.
  memory.free(second);
  CachingAllocator::Block sixth = allocate(5);
  CHECK(sixth.start == 30 * kMiB);
  memory.free(fourth);
  memory.free(sixth);
  CachingAllocator::Block seventh = allocate(15, Content::kGradients);
  CHECK(memory.reserved() == 80 * kMiB);
  // A free block at the end of the segment is part of what it grows by.
  memory.free(seventh);
  CachingAllocator::Block eighth = allocate(21);
  CHECK(memory.reserved() == 100 * kMiB);
  CHECK(eighth.start == 60 * kMiB);
  // At most 66 MiB lived at once, none of them gradients.
  CHECK(memory.peak()[static_cast<size_t>(Content::kWorking)] == 66 * kMiB);
  CHECK(memory.peak()[static_cast<size_t>(Content::kGradients)] == 0);
}

TEST_CASE("Small tensors share pages, and a rest of at most 1 MiB stays with its tensor") {
  constexpr double kMiB = 1 << 20;
  CachingAllocator memory;
  CachingAllocator::Block nothing = memory.allocate(0, Content::kStates);
  CHECK_FALSE(nothing);
  CachingAllocator::Block small = memory.allocate(kMiB, Content::kStates),
                          one_byte = memory.allocate(1, Content::kStates);
  CHECK(memory.reserved() == 2 << 20);
  CHECK(one_byte.bytes == 512);
  memory.free(small);
  memory.free(nothing);
  CachingAllocator::Block large = memory.allocate(19.5 * kMiB, Content::kStates);
  CHECK(memory.reserved() == 22 << 20);
  memory.allocate(1.5 * kMiB, Content::kStates);  // none is left of the first
  CHECK(memory.reserved() == 42 << 20);
  memory.free(large);
  CachingAllocator::Block all = memory.allocate(20 * kMiB, Content::kStates);
  CHECK(all.start == 0);
  CHECK(memory.reserved() == 42 << 20);
}

}  // namespace hyperion::trainer
