#include "checkpoint/finite.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <catch2/catch.hpp>

#include "checkpoint/cast.h"

namespace hyperion::checkpoint {
namespace {

template <typename Word>
uint64_t count(Dtype dtype, const std::vector<Word>& words) {
  return count_not_finite(dtype, words.data(), words.size() * sizeof(Word));
}

}  // namespace

TEST_CASE("every 16-bit number that is NaN or infinite is counted and no other") {
  for (const Dtype dtype : {Dtype::kBFloat16, Dtype::kFloat16}) {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const auto word = static_cast<uint16_t>(bits);
      float wide = 0;
      cast(dtype, &word, Dtype::kFloat32, &wide, 1);
      REQUIRE(count_not_finite(dtype, &word, 2) == (std::isfinite(wide) ? 0 : 1));
    }
  }
}

TEST_CASE("every 8-bit number that is NaN or infinite is counted and no other") {
  for (uint32_t bits = 0; bits < 0x100; ++bits) {
    const auto word = static_cast<uint8_t>(bits);
    const uint32_t magnitude = bits & 0x7f;
    CAPTURE(bits);
    CHECK(count_not_finite(Dtype::kFloat8E4M3FN, &word, 1) == (magnitude == 0x7f ? 1 : 0));
    CHECK(count_not_finite(Dtype::kFloat8E5M2, &word, 1) == (magnitude >= 0x7c ? 1 : 0));
    CHECK(count_not_finite(Dtype::kFloat8E4M3FNUZ, &word, 1) == (bits == 0x80 ? 1 : 0));
    CHECK(count_not_finite(Dtype::kFloat8E5M2FNUZ, &word, 1) == (bits == 0x80 ? 1 : 0));
    CHECK(count_not_finite(Dtype::kFloat8E8M0FNU, &word, 1) == (bits == 0xff ? 1 : 0));
    CHECK(count_not_finite(Dtype::kUInt8, &word, 1) == 0);
  }
}

TEMPLATE_TEST_CASE("32 and 64 bit numbers that are NaN or infinite are counted wherever they lie", "", float,
                   double) {
  using Limits = std::numeric_limits<TestType>;
  const Dtype dtype = sizeof(TestType) == 4 ? Dtype::kFloat32 : Dtype::kFloat64;
  const Dtype complex = sizeof(TestType) == 4 ? Dtype::kComplex64 : Dtype::kComplex128;
  for (const size_t length : {1, 2, 7, 64, 4095, 4096, 4097, 20000}) {
    std::vector<TestType> numbers(length, Limits::max());
    numbers[length / 2] = Limits::denorm_min();
    numbers[length / 3] = -Limits::max();
    CHECK(count(dtype, numbers) == 0);
    for (const size_t place : {size_t{0}, length / 2, length - 1}) {
      for (const TestType bad : {Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity()}) {
        std::vector<TestType> changed = numbers;
        changed[place] = bad;
        REQUIRE(count(dtype, changed) == 1);
        REQUIRE(count(complex, changed) == 1);
      }
    }
    CHECK(count(dtype, std::vector<TestType>(length, -Limits::quiet_NaN())) == length);
  }
  std::vector<char> shifted(1 + sizeof(TestType));
  const TestType bad = Limits::quiet_NaN();
  std::memcpy(shifted.data() + 1, &bad, sizeof bad);
  CHECK(count_not_finite(dtype, shifted.data() + 1, sizeof bad) == 1);
}

TEST_CASE("the first tensors that are not finite are named and the others are counted") {
  NotFinite found;
  CHECK(found.empty());
  const std::vector<float> good(10, 1), bad(10, std::nanf(""));
  CHECK(found.scan("good", Dtype::kFloat32, good.data(), 40) == 0);
  CHECK(found.empty());
  found.scan("a", Dtype::kFloat32, bad.data(), 4);
  CHECK(found.text() == "a (1 number)");
  found.scan("b", Dtype::kFloat32, bad.data(), 40);
  found.scan("a", Dtype::kFloat32, bad.data(), 8);
  CHECK(found.text() == "a (3 numbers), b (10 numbers)");
  for (const char* name : {"c", "d", "e", "f", "g\n"}) found.add(name, 2);
  CHECK(found.text() ==
        "a (3 numbers), b (10 numbers), c (2 numbers), d (2 numbers), e (2 numbers) and 2 more tensors");
  CHECK(found.total() == 23);
}

}  // namespace hyperion::checkpoint
