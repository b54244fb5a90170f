#include "base/philox.h"

#include <catch2/catch.hpp>

namespace hyperion {

// Known answers of the Random123 distribution (kat_vectors, philox4x32 10 rounds).
TEST_CASE("philox equals the published known answers") {
  CHECK(philox4x32(0, 0, 0) == PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32(~0ull, ~0ull, ~0ull) == PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32(0x299f31d0a4093822ull, 0x85a308d3243f6a88ull, 0x0370734413198a2eull) ==
        PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("uniform_open stays inside the open interval") {
  CHECK(uniform_open(0, 0) > 0.0);
  CHECK(uniform_open(~0u, ~0u) < 1.0);
}

}  // namespace hyperion
