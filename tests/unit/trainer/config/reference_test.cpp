#include "trainer/config/reference.h"

#include <sstream>

#include <catch2/catch.hpp>

#include "base/files.h"
#include "trainer/config/schema.h"

namespace hyperion::config {

TEST_CASE("docs configuration reference is what the schema says today") {
  // Fails after a change of the schema: write the file again with `hyperion config --reference`.
  CHECK(read_file(HYPERION_SOURCE_DIR "/docs/configuration.md") == configuration_reference());
}

TEST_CASE("help names every option and keeps to the width of the terminal") {
  const std::string text = options_help(100);
  for (const Section& section : schema()) {
    CHECK(text.find("\n[" + section.name + "] ") != std::string::npos);
    for (const Option& option : section.options) {
      CAPTURE(option.name);
      CHECK(text.find("\n  --" + option.name + " ") != std::string::npos);
    }
  }
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 100);
}

TEST_CASE("help on a narrow terminal is longer and not lost") {
  CHECK(options_help(40).size() > options_help(160).size());
  CHECK(options_help(-5) == options_help(40));
}

}  // namespace hyperion::config
