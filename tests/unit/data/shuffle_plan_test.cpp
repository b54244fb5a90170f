#include "data/shuffle_plan.h"

#include <algorithm>

#include <catch2/catch.hpp>

namespace hyperion::data {
namespace {

uint64_t bytes_of(const std::vector<CorpusPart>& slot) {
  uint64_t bytes = 0;
  for (const CorpusPart& part : slot) bytes += part.bytes;
  return bytes;
}

}  // namespace

TEST_CASE("slots hold each file once, in order and in nearly equal bytes") {
  std::vector<PlannedFile> files;
  for (uint64_t i = 0; i < 1000; ++i) files.push_back({.bytes = 1000 + 37 * (i % 11)});
  const auto slots = plan_slots(files, 64);
  REQUIRE(slots.size() == 64);
  uint32_t next = 0;
  uint64_t least = UINT64_MAX, most = 0;
  for (const auto& slot : slots) {
    for (const CorpusPart& part : slot) CHECK(part == CorpusPart{next++, 0, 1, files[part.file].bytes});
    least = std::min(least, bytes_of(slot));
    most = std::max(most, bytes_of(slot));
  }
  CHECK(next == 1000);
  CHECK(static_cast<double>(most) / static_cast<double>(least) < 1.2);
}

TEST_CASE("a large file is cut into parts where its blocks can be opened in any order") {
  const uint64_t gigabyte = uint64_t{1} << 30;
  const auto parts = [&](bool divisible) {
    std::vector<PlannedFile> files(3, {.bytes = gigabyte / 1000, .divisible = divisible});
    files.push_back({.bytes = 5000 * gigabyte, .divisible = divisible});
    return plan_slots(files, 64);
  };
  CHECK(parts(false).size() == 2);
  const auto slots = parts(true);
  CHECK(slots.size() == 63);  // the small files share the first slot with a part of the large one
  CHECK(slots.front().size() == 4);
  CHECK(slots.back() == std::vector{CorpusPart{3, 62, 63, 5000 * gigabyte - 5000 * gigabyte * 62 / 63}});
}

TEST_CASE("few small files have a slot each, and compressed ones at most sixteen slots") {
  CHECK(plan_slots(std::vector<PlannedFile>(3, {.bytes = 10, .divisible = true}), 64).size() == 3);
  std::vector<PlannedFile> files(500, {.bytes = 10});
  files[7].sequential = true;
  CHECK(plan_slots(files, 64).size() == kMaxSequentialSlots);
  CHECK(plan_slots(files, 4).size() == 4);
  CHECK(plan_slots(files, 1).size() == 1);
}

}  // namespace hyperion::data
