#include <catch2/catch.hpp>

#include "base/error.h"
#include "data/loader.h"

namespace hyperion::data {

TEST_CASE("a loader state survives JSON in a few bytes") {
  LoaderState state;
  state.sources[0].position = {
      .epoch = 3, .draws = 9, .slot = 1, .token = 77, .slots = {{1, 0, 4}, {1, 7, 123456789012}}};
  state.sequence = 1ull << 50;
  state.seed = ~0ull;
  state.shuffle = false;
  state.fingerprint = 0xfedcba9876543210;
  for (const LoaderState& one : {state, LoaderState{}}) {
    const LoaderState read = LoaderState::from_json(one.to_json());
    CHECK(read.to_json() == one.to_json());
    CHECK(read.sources[0].position == one.sources[0].position);
  }
  CHECK(state.to_json().size() < 256);
}

TEST_CASE("a state of a program that read one file after another is read") {
  const LoaderState state = LoaderState::from_json(
      R"({"version":1,"epoch":2,"file":0,"document":41,"token_offset":7,"sequence":9,"seed":5,"shuffle":true,)"
      R"("fingerprint":"00000000000000ff"})");
  CHECK(state.sources[0].position ==
        StreamPosition{.epoch = 2, .draws = 1, .slot = 0, .token = 7, .slots = {{0, 0, 41}}});
  CHECK(state.sequence == 9);
}

TEST_CASE("a damaged loader state is an error that names the field") {
  const std::string good = LoaderState{}.to_json();
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  CHECK_THROWS_WITH(LoaderState::from_json(""), Catch::Contains("JSON"));
  CHECK_THROWS_WITH(LoaderState::from_json("[1]"), Catch::Contains("is array, expected an object"));
  CHECK_THROWS_WITH(LoaderState::from_json("{}"), Catch::Contains("version"));
  CHECK_THROWS_WITH(LoaderState::from_json(changed("\"version\":2", "\"version\":4")),
                    Catch::Contains("version 4"));
  CHECK_THROWS_WITH(LoaderState::from_json(changed("\"epoch\":0", "\"epoch\":-1")), Catch::Contains("epoch"));
  CHECK_THROWS_WITH(LoaderState::from_json(changed("\"token_offset\":0", "\"token_offset\":1.5")),
                    Catch::Contains("token_offset"));
  CHECK_THROWS_WITH(LoaderState::from_json(changed("true", "1")), Catch::Contains("shuffle"));
  CHECK_THROWS_WITH(LoaderState::from_json(changed("0000000000000000", "xyz")), Catch::Contains("xyz"));
  CHECK_THROWS_AS(LoaderState::from_json(std::string(100000, '[')), Error);
}

}  // namespace hyperion::data
