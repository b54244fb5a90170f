#include "trainer/data/decompress.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/unit/data/fixtures.h"

using namespace hyperion;

namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string unpack(const std::string& packed, size_t limit = size_t{1} << 30) {
  return decompress(bytes_of(packed), detect_compression(bytes_of(packed)), "FILE", limit);
}

std::string long_text() {
  std::string text;
  for (int i = 0; i < 200000; ++i) text += std::to_string(i * 7919 % 100003);
  return text;
}

}  // namespace

TEST_CASE("gzip and zstd are told by their first bytes and decompressed") {
  const std::string text = long_text();
  CHECK(detect_compression(bytes_of(test::gzip(text))) == Compression::kGzip);
  CHECK(detect_compression(bytes_of(test::zstd(text))) == Compression::kZstd);
  CHECK(detect_compression(bytes_of(text)) == Compression::kNone);
  CHECK(detect_compression({}) == Compression::kNone);
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

TEST_CASE("highly compressible text grows the output") {
  const std::string text(5'000'000, 'a');
  CHECK(unpack(test::gzip(text)) == text);
  CHECK(unpack(test::zstd(text)) == text);
  CHECK_THROWS_WITH(unpack(test::gzip(text), 4'000'000),
                    Catch::Contains("FILE") && Catch::Contains("4000000"));
  CHECK_THROWS_WITH(unpack(test::zstd(text), 4'000'000),
                    Catch::Contains("FILE") && Catch::Contains("4000000"));
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
