#include "checkpoint/cast.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include <catch2/catch.hpp>

namespace hyperion::checkpoint {
namespace {

uint16_t to16(Dtype type, float value) {
  uint16_t out = 0;
  cast(Dtype::kFloat32, &value, type, &out, 1);
  return out;
}

float from16(Dtype type, uint16_t bits) {
  float out = 0;
  cast(type, &bits, Dtype::kFloat32, &out, 1);
  return out;
}

}  // namespace

TEST_CASE("every 16-bit number survives the way through float32 and back") {
  for (const Dtype type : {Dtype::kBFloat16, Dtype::kFloat16}) {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const float wide = from16(type, static_cast<uint16_t>(bits));
      if (std::isnan(wide)) continue;
      REQUIRE(to16(type, wide) == bits);
    }
    CHECK(std::isnan(from16(type, to16(type, std::numeric_limits<float>::quiet_NaN()))));
  }
}

TEST_CASE("halfway cases round to even and overflow becomes infinite") {
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {  // between each two neighbours of float16
    const auto low = static_cast<uint16_t>(bits), high = static_cast<uint16_t>(bits + 1);
    const float a = from16(Dtype::kFloat16, low), b = from16(Dtype::kFloat16, high);
    if (std::isinf(b)) break;
    const float middle = a + (b - a) / 2;
    REQUIRE(to16(Dtype::kFloat16, middle) == (low % 2 == 0 ? low : high));
    REQUIRE(to16(Dtype::kFloat16, std::nextafter(middle, b)) == high);
    REQUIRE(to16(Dtype::kFloat16, std::nextafter(middle, a)) == low);
  }
  CHECK(to16(Dtype::kFloat16, 65519.0f) == 0x7bff);
  CHECK(to16(Dtype::kFloat16, 65520.0f) == 0x7c00);
  CHECK(to16(Dtype::kBFloat16, std::bit_cast<float>(0x3f808000u)) == 0x3f80);
  CHECK(to16(Dtype::kBFloat16, std::bit_cast<float>(0x3f818000u)) == 0x3f82);
  CHECK(to16(Dtype::kBFloat16, std::numeric_limits<float>::max()) == 0x7f80);
}

TEST_CASE("only floating-point types are converted") {
  CHECK(can_cast(Dtype::kFloat64, Dtype::kBFloat16));
  CHECK_FALSE(can_cast(Dtype::kInt64, Dtype::kFloat32));
  const double wide = 1.0 / 3.0;
  float single = 0;
  cast(Dtype::kFloat64, &wide, Dtype::kFloat32, &single, 1);
  CHECK(single == 1.0f / 3.0f);
}

}  // namespace hyperion::checkpoint
