#include "base/pack.h"

#include <map>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/support/error_of.h"

namespace hyperion {
namespace {

enum class Colour : char { kRed, kGreen };

struct Point {
  int64_t x = 0;
  double y = 0;
  bool operator==(const Point&) const = default;
  static auto members(auto& self) { return std::tie(self.x, self.y); }
};

struct Everything {
  std::string text;
  Colour colour = Colour::kRed;
  bool flag = false;
  std::optional<Point> point;
  std::vector<std::variant<std::string, int64_t>> path;
  std::map<std::string, std::vector<uint64_t>> lists;
  bool operator==(const Everything&) const = default;
  static auto members(auto& self) {
    return std::tie(self.text, self.colour, self.flag, self.point, self.path, self.lists);
  }
};

const Everything kSample = {std::string("a\0b", 3),
                            Colour::kGreen,
                            true,
                            Point{-3, 0.5},
                            {std::string("state"), int64_t{7}},
                            {{"", {}}, {"long", std::vector<uint64_t>(300, 5)}}};

template <typename T>
bool refuses(const std::string& bytes) {
  return error_of(ExitCode::kBug, [&] { unpack<T>(bytes); }).starts_with("a message between processes");
}

}  // namespace

TEST_CASE("values of every kind come back as they were packed") {
  CHECK(unpack<Everything>(pack(kSample)) == kSample);
  CHECK(unpack<Everything>(pack(Everything{})) == Everything{});
  CHECK(unpack<std::vector<bool>>(pack(std::vector<bool>{true, false, true})) ==
        std::vector<bool>{true, false, true});
  CHECK(pack(std::string(127, 'x')).size() == 128);  // short texts cost one byte more
}

TEST_CASE("bytes that are no such value are refused, whatever is cut off, added or changed") {
  const std::string packed = pack(kSample);
  for (size_t size = 0; size < packed.size(); ++size) CHECK(refuses<Everything>(packed.substr(0, size)));
  CHECK_THAT(error_of(ExitCode::kBug, [&] { unpack<Everything>(packed + "x"); }),
             Catch::Contains("more bytes"));
  for (size_t at = 0; at < packed.size(); ++at)
    for (const int bits : {0x01, 0x40, 0x80, 0xFF}) {
      std::string changed = packed;
      changed[at] = static_cast<char>(changed[at] ^ bits);
      try {
        unpack<Everything>(changed);  // another value, or refused
      } catch (const Error& error) {
        CHECK(error.code() == ExitCode::kBug);
      }
    }
}

TEST_CASE("a size that the bytes do not have costs no memory") {
  for (const std::string& size :
       {std::string(9, '\xFF') + '\x01', std::string(8, '\xFF') + '\x7F', std::string("\x7F")}) {
    CHECK(refuses<std::string>(size));
    CHECK(refuses<std::vector<Everything>>(size));
  }
  CHECK(refuses<bool>("\x02"));
  CHECK(refuses<std::variant<int, bool>>("\x02\x01"));
}

}  // namespace hyperion
