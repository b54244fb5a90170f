#include "base/nearest.h"

#include <algorithm>
#include <vector>

#include <catch2/catch.hpp>

namespace hyperion {

TEST_CASE("the distance counts insertions deletions substitutions and swaps") {
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("steps", "stesp") == 1);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("same", "same") == 0);
}

TEST_CASE("a limit ends the count early and changes nothing below it") {
  const std::vector<std::string> words = {"", "a", "ab", "ba", "layers.0.wq", "layers.10.wk", "norm", "mron"};
  for (const std::string& a : words)
    for (const std::string& b : words)
      for (size_t limit = 0; limit < 14; ++limit) {
        CAPTURE(a, b, limit);
        CHECK(edit_distance(a, b, limit) == std::min(limit, edit_distance(a, b)));
      }
}

TEST_CASE("the nearest name is suggested only when it is near") {
  const std::vector<std::string> names = {"model", "optimizer", "dataloader"};
  CHECK(nearest_name("data_loader", names) == "dataloader");
  CHECK(nearest_name("zoo", names).empty());
  CHECK(nearest_name(std::string(1 << 20, 'a'), names).empty());
  CHECK(did_you_mean("x") == "; did you mean x?");
  CHECK(did_you_mean("").empty());
}

}  // namespace hyperion
