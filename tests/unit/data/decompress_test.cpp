#include "data/decompress.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/support/documents.h"

namespace hyperion::data {
namespace {

bool compressed(const std::string& content) {
  const test::TemporaryFolder folder;
  return is_compressed(InputFile(folder.write("FILE", content)));
}

std::string unpack(const std::string& packed, uint64_t limit = uint64_t{1} << 30) {
  const test::TemporaryFolder folder;
  const InputFile file(folder.write("FILE", packed));
  InflatedStream stream(file, limit);
  std::string text(64'000'000, '\0');
  size_t size = 0;
  for (size_t want = 1;; want = std::min<size_t>(want * 3, 1'000'000)) {  // pieces of many sizes
    REQUIRE(size + want <= text.size());
    const size_t got = stream.read(text.data() + size, want);
    size += got;
    if (got < want) break;  // the end
  }
  CHECK(stream.consumed() == packed.size());
  text.resize(size);
  return text;
}

std::string long_text() {
  std::string text;
  for (int i = 0; i < 200000; ++i) text += std::to_string(i * 7919 % 100003);
  return text;
}

}  // namespace

TEST_CASE("gzip and zstd are told by their first bytes and decompressed") {
  const std::string text = long_text();
  CHECK(compressed(test::gzip(text)));
  CHECK(compressed(test::zstd(text)));
  CHECK_FALSE(compressed(text));
  CHECK_FALSE(compressed(""));
  CHECK(unpack(test::gzip(text)) == text);
  CHECK(unpack(test::zstd(text)) == text);
  CHECK(unpack(test::gzip("")).empty());
  CHECK(unpack(test::zstd("")).empty());
}

TEST_CASE("several gzip members or zstd frames in a row are one text") {
  const std::string text = long_text();
  CHECK(unpack(test::gzip(text) + test::gzip("second") + test::gzip("third")) == text + "secondthird");
  CHECK(unpack(test::zstd(text) + test::zstd("second") + test::zstd("third")) == text + "secondthird");
}

TEST_CASE("skippable frames of zstd are skipped in front and between and at the end") {
  const std::string text = long_text();
  using namespace std::string_literals;
  const std::string skipped = "\x50\x2A\x4D\x18\x04\0\0\0abcd"s, empty = "\x5F\x2A\x4D\x18\0\0\0\0"s;
  CHECK(unpack(skipped + test::zstd(text)) == text);
  CHECK(unpack(empty + skipped + test::zstd(text) + skipped + test::zstd("second") + empty) ==
        text + "second");
  CHECK(unpack(skipped).empty());
  CHECK_THROWS_WITH(unpack(skipped.substr(0, 10)), Catch::Contains("ends early"));
  CHECK_THROWS_WITH(unpack(test::zstd("x") + skipped.substr(0, 10)), Catch::Contains("ends early"));
  CHECK_FALSE(compressed("P*M"));
}

TEST_CASE("zero bytes behind a gzip member are padding and a member behind them is read") {
  const std::string padding(3'000'000, '\0');
  CHECK(unpack(test::gzip("first") + padding) == "first");
  CHECK(unpack(test::gzip("first") + std::string(7, '\0') + test::gzip("second") + padding) == "firstsecond");
  CHECK_THROWS_WITH(unpack(test::gzip("x") + padding + "garbage"), Catch::Contains("damaged gzip"));
}

TEST_CASE("highly compressible text grows the output") {
  const std::string text(5'000'000, 'a');
  CHECK(unpack(test::gzip(text)) == text);
  CHECK(unpack(test::zstd(text)) == text);
  CHECK_THROWS_WITH(unpack(test::gzip(text), 4'000'000),
                    Catch::Contains("FILE") && Catch::Contains("4000000"));
  CHECK_THROWS_WITH(unpack(test::zstd(text), 4'000'000),
                    Catch::Contains("FILE") && Catch::Contains("4000000"));
}

TEST_CASE("a compressed file inflates to 64 times its size at most") {
  CHECK(inflation_limit(100) == uint64_t{256} << 20);
  CHECK(inflation_limit(uint64_t{20} << 20) == uint64_t{1280} << 20);
  CHECK(inflation_limit(uint64_t{8} << 30) == uint64_t{64} << 30);
}

TEST_CASE("compressed data cut anywhere is an error that names the file") {
  for (const std::string& packed : {test::gzip(long_text()), test::zstd(long_text())}) {
    for (const size_t size : {size_t{4}, size_t{20}, packed.size() / 2, packed.size() - 1}) {
      CAPTURE(size);
      CHECK_THROWS_WITH(unpack(packed.substr(0, size)),
                        Catch::Contains("FILE") && Catch::Contains("ends early"));
    }
  }
}

TEST_CASE("damaged compressed data is an error that names the file") {
  std::string packed = test::gzip(long_text());
  packed[packed.size() / 2] ^= 0x55;
  CHECK_THROWS_WITH(unpack(packed), Catch::Contains("FILE"));
  CHECK_THROWS_WITH(unpack(test::gzip("x") + "garbage"), Catch::Contains("damaged gzip"));
  packed = test::zstd(long_text());
  packed[8] ^= 0x55;
  packed[packed.size() / 2] ^= 0x55;
  CHECK_THROWS_AS(unpack(packed), Error);
  CHECK_THROWS_WITH(unpack(test::zstd("x") + "garbage"), Catch::Contains("damaged zstd"));
}

}  // namespace hyperion::data
