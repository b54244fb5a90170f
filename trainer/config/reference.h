// Prints the schema for `--help` and docs/configuration.md.
#pragma once

#include <string>

namespace hyperion::config {

// Lists every option by section with type, default and meaning, wrapped to `width` columns.
std::string options_help(int width);

// Returns docs/configuration.md. `hyperion config --reference` prints it; a test compares the committed file
// with it.
std::string configuration_reference();

}  // namespace hyperion::config
