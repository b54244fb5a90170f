#include "base/box.h"

#include <numeric>
#include <set>

#include <catch2/catch.hpp>

#include "base/error.h"

namespace hyperion {
namespace {

// The row-major indices of the elements of `box` in a tensor of `shape`, in order.
std::vector<int64_t> elements(const std::vector<int64_t>& shape, const Box& box) {
  std::vector<int64_t> all;
  for_each_run(shape, box, [&](const Run& run) {
    CHECK(run.in_box == static_cast<int64_t>(all.size()));
    for (int64_t i = 0; i < run.count; ++i) all.push_back(run.in_tensor + i);
  });
  CHECK(static_cast<int64_t>(all.size()) == box.numel());
  return all;
}

}  // namespace

TEST_CASE("a dimension is cut as torch.chunk cuts it") {
  CHECK(chunk_of(9, 4, 0) == Range{0, 3});
  CHECK(chunk_of(9, 4, 2) == Range{6, 3});
  CHECK(chunk_of(9, 4, 3) == Range{9, 0});
  CHECK(chunk_of(10, 4, 3) == Range{9, 1});
  CHECK(chunk_of(0, 3, 2) == Range{0, 0});
  CHECK(chunk_of(5, 1, 0) == Range{0, 5});
}

TEST_CASE("cuts apply to what the one before left") {
  const std::vector<Cut> strided = {{.dim = 0, .parts = 2, .index = 1}, {.dim = 0, .parts = 3, .index = 1}};
  CHECK(box_of({9, 4}, strided) == Box{{7, 0}, {2, 4}});  // rows 5 to 8, of which 7 and 8
  const std::vector<Cut> tile = {{.dim = 1, .parts = 2, .index = 1}, {.dim = 0, .parts = 4, .index = 0}};
  CHECK(box_of({9, 5}, tile) == Box{{0, 3}, {3, 2}});
  const std::vector<Cut> empty = {{.dim = 0, .parts = 4, .index = 3}};
  CHECK(box_of({9, 5}, empty) == Box{{9, 0}, {0, 5}});
  CHECK(box_of({}, {}) == Box{{}, {}});
}

TEST_CASE("the parts of all ranks hold every element once") {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{9, 5}, {1, 7}, {3, 4, 5}, {7, 2, 3}})
    for (const auto& [first, second] : {std::pair(0, 0), {0, 1}, {1, 0}, {1, 1}})
      for (const int64_t outer : {1, 2, 4})
        for (const int64_t inner : {1, 3, 8}) {
          std::multiset<int64_t> seen;
          for (int64_t a = 0; a < outer; ++a)
            for (int64_t b = 0; b < inner; ++b) {
              const std::vector<Cut> cuts = {{.dim = first, .parts = outer, .index = a},
                                             {.dim = second, .parts = inner, .index = b}};
              const std::vector<int64_t> part = elements(shape, box_of(shape, cuts));
              seen.insert(part.begin(), part.end());
            }
          std::vector<int64_t> all(static_cast<size_t>(whole_box(shape).numel()));
          std::iota(all.begin(), all.end(), 0);
          CHECK(std::vector<int64_t>(seen.begin(), seen.end()) == all);
        }
}

TEST_CASE("boxes intersect in a box or not at all") {
  CHECK(intersection({{0, 2}, {4, 3}}, {{2, 0}, {5, 3}}) == Box{{2, 2}, {2, 1}});
  CHECK_FALSE(intersection({{0, 0}, {4, 2}}, {{2, 2}, {5, 3}}));
  CHECK_FALSE(intersection({{1, 0}, {0, 2}}, {{0, 0}, {5, 3}}));
}

TEST_CASE("runs are as long as the tensor's order allows") {
  std::vector<Run> runs;
  const auto keep = [&](const Run& run) { runs.push_back(run); };
  for_each_run({4, 3, 5}, {{1, 0, 0}, {2, 3, 5}}, keep);
  REQUIRE(runs.size() == 1);
  CHECK((runs[0].in_tensor == 15 && runs[0].in_box == 0 && runs[0].count == 30));
  runs.clear();
  for_each_run({4, 3, 5}, {{1, 1, 0}, {2, 2, 5}}, keep);
  REQUIRE(runs.size() == 2);
  CHECK((runs[1].in_tensor == 35 && runs[1].in_box == 10 && runs[1].count == 10));
  runs.clear();
  for_each_run({}, {{}, {}}, keep);
  REQUIRE(runs.size() == 1);
  CHECK(runs[0].count == 1);
}

TEST_CASE("a cut of a dimension that is not there is refused") {
  CHECK_THROWS_AS(box_of({4}, std::vector<Cut>{{.dim = 1, .parts = 2}}), Error);
  CHECK_THROWS_AS(box_of({4}, std::vector<Cut>{{.parts = 2, .index = 2}}), Error);
}

}  // namespace hyperion
