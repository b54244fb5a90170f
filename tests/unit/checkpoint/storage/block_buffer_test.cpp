#include "checkpoint/storage/block_buffer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

namespace hyperion::checkpoint {
namespace {

bool all_are(FileBlock& block, std::byte value) {
  return std::count(block.data(), block.data() + kBlockBytes, value) == kBlockBytes;
}

}  // namespace

TEST_CASE("the next file gets the memory of the last one, and no more than a writer needs is kept") {
  for (int round = 0; round < 2; ++round) {
    {
      std::array<FileBlock, 3> blocks;
      for (FileBlock& block : blocks) std::memset(block.data(), 7 + round, kBlockBytes);
    }
    std::array<FileBlock, 3> blocks;  // new memory is zero
    const auto value = static_cast<std::byte>(7 + round);
    CHECK(std::ranges::count_if(blocks, [&](FileBlock& block) { return all_are(block, value); }) == 2);
    CHECK(std::ranges::count_if(blocks, [&](FileBlock& block) { return all_are(block, std::byte{0}); }) == 1);
  }
}

TEST_CASE("no two files have one block, also where threads write them") {
  std::vector<std::thread> threads;
  std::array<bool, 4> alone{};
  for (size_t t = 0; t < alone.size(); ++t)
    threads.emplace_back([&, t] {
      alone[t] = true;
      for (int file = 0; file < 20; ++file) {
        std::array<FileBlock, 2> blocks;
        for (FileBlock& block : blocks) std::memset(block.data(), static_cast<int>(t), kBlockBytes);
        for (FileBlock& block : blocks) alone[t] = alone[t] && all_are(block, static_cast<std::byte>(t));
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(std::ranges::count(alone, true) == 4);
}

}  // namespace hyperion::checkpoint
