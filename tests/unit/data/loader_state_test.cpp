#include <catch2/catch.hpp>

#include "base/error.h"
#include "data/loader.h"

namespace hyperion::data {

TEST_CASE("a loader state survives JSON in a few bytes") {
  LoaderState state;
  state.position = {3, 1, 123456789012, 77};
  state.sequence = 1ull << 50;
  state.seed = ~0ull;
  state.shuffle = false;
  state.fingerprint = 0xfedcba9876543210;
  CHECK(LoaderState::from_json(state.to_json()) == state);
  CHECK(LoaderState::from_json(LoaderState{}.to_json()) == LoaderState{});
  CHECK(state.to_json().size() < 256);
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
  CHECK_THROWS_WITH(LoaderState::from_json(changed("\"version\":1", "\"version\":2")),
                    Catch::Contains("version 2"));
  CHECK_THROWS_WITH(LoaderState::from_json(changed("\"epoch\":0", "\"epoch\":-1")), Catch::Contains("epoch"));
  CHECK_THROWS_WITH(LoaderState::from_json(changed("\"token_offset\":0", "\"token_offset\":1.5")),
                    Catch::Contains("token_offset"));
  CHECK_THROWS_WITH(LoaderState::from_json(changed("true", "1")), Catch::Contains("shuffle"));
  CHECK_THROWS_WITH(LoaderState::from_json(changed("0000000000000000", "xyz")), Catch::Contains("xyz"));
  CHECK_THROWS_AS(LoaderState::from_json(std::string(100000, '[')), Error);
}

}  // namespace hyperion::data
