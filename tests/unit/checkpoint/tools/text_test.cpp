#include <cmath>
#include <cstring>

#include <catch2/catch.hpp>

#include "base/counted.h"
#include "checkpoint/tools/aligned_table.h"
#include "checkpoint/tools/tools.h"

namespace hyperion::checkpoint {

TEST_CASE("numbers for people are short and have units") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(1023) == "1023 B");
  CHECK(format_bytes(1536) == "1.50 KiB");
  CHECK(format_bytes(uint64_t{250} << 20) == "250 MiB");
  CHECK(format_bytes(uint64_t{1023} << 20) == "1.00 GiB");
  CHECK(format_age(59) == "just now");
  CHECK(format_age(3 * 3600 + 100) == "3 h ago");
  CHECK(format_age(86400 * 40) == "40 d ago");
  CHECK(format_age(-3600) == "in the future");
}

TEST_CASE("long texts lose their middle and stay printable") {
  CHECK(shorten("abcdefghijklmnop", 16) == "abcdefghijklmnop");
  CHECK(shorten("abcdefghijklmnopq", 11) == "abcd...nopq");
  CHECK(shorten("a\nb", 10) == "a\\x0ab");
  CHECK(shorten("äöüäöüäöüäöü", 9) == "äöü...äöü");
}

TEST_CASE("tables are aligned and no wider than a hundred columns") {
  AlignedTable table({"name", ">size", "what"});
  table.add({"a", "10", "x"});
  table.add({std::string(150, 'n'), "5", std::string(80, 'w')});
  const std::string text = table.text();
  size_t begin = 0;
  std::vector<std::string> lines;
  for (size_t end; (end = text.find('\n', begin)) != text.npos; begin = end + 1)
    lines.push_back(text.substr(begin, end - begin));
  REQUIRE(lines.size() == 3);
  for (const std::string& line : lines) CHECK(line.size() <= kTableWidth);
  CHECK(lines[2].size() == kTableWidth);
  CHECK(lines[0].find("size") + 4 == lines[1].find("10") + 2);
  CHECK(lines[0].find("what") == lines[1].find('x'));
}

TEST_CASE("boxes fill a tensor in row-major order within their limit") {
  for (const Dims& whole :
       {Dims{}, Dims{7}, Dims{3, 5}, Dims{2, 3, 4}, Dims{4, 1, 6}, Dims{1, 1}, Dims{2, 0, 3}}) {
    for (const int64_t most : {1, 2, 5, 12, 1000}) {
      int64_t next = 0;
      each_box(whole, most, [&](const Box& box) {
        int64_t at = 0;
        for (size_t d = 0; d < whole.size(); ++d) at = at * whole[d] + box.offset[d];
        CHECK(at == next);
        CHECK(box.numel() <= most);
        next += box.numel();
      });
      CHECK(next == whole_box(whole).numel());
    }
  }
}

namespace {

template <typename T>
const std::byte* bytes(const std::vector<T>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}

}  // namespace

TEST_CASE("differences are counted by bits and measured as numbers") {
  const std::vector<float> a = {3, 4, 0, 1}, b = {3, 4, -0.0F, 1.5F};
  ValueDifference difference(Dtype::kFloat32, Dtype::kFloat32);
  difference.add(bytes(a), bytes(b), 2);
  CHECK(difference.different() == 0);
  difference.add(bytes(a) + 8, bytes(b) + 8, 2);
  CHECK(difference.different() == 2);  // the sign of zero is a bit
  CHECK(difference.max_abs() == 0.5);
  CHECK(difference.relative_l2() == Approx(0.5 / std::sqrt(26.0)));

  const std::vector<double> wide = {3, 4, 0, 1};
  ValueDifference types(Dtype::kFloat32, Dtype::kFloat64);
  types.add(bytes(a), bytes(wide), 4);
  CHECK(types.different() == 0);
  CHECK(types.is_float());

  const std::vector<float> broken = {NAN, 4, INFINITY, 1};
  ValueDifference strange(Dtype::kFloat32, Dtype::kFloat32);
  strange.add(bytes(a), bytes(broken), 4);
  CHECK(strange.different() == 2);
  CHECK(std::isnan(strange.max_abs()));
  ValueDifference same(Dtype::kFloat32, Dtype::kFloat32);
  same.add(bytes(broken), bytes(broken), 4);
  CHECK(same.different() == 0);
  CHECK(same.max_abs() == 0);

  const std::vector<int64_t> i = {1, 2}, j = {1, 3};
  ValueDifference whole(Dtype::kInt64, Dtype::kInt64);
  whole.add(bytes(i), bytes(j), 2);
  CHECK(whole.different() == 1);
  CHECK_FALSE(whole.is_float());
}

}  // namespace hyperion::checkpoint
