#include "checkpoint/format/zip/crc32.h"

#include <string>

#include <catch2/catch.hpp>

namespace hyperion::checkpoint {

TEST_CASE("the CRC-32 of zip archives over known texts and pieces") {
  const std::string text = "123456789";
  CHECK(crc32(0, text.data(), text.size()) == 0xCBF43926);
  CHECK(crc32(0, nullptr, 0) == 0);
  CHECK(crc32(crc32(0, "1234", 4), "56789", 5) == 0xCBF43926);
}

}  // namespace hyperion::checkpoint
