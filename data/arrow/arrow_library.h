// Loads libhyperion_arrow.so with the Apache Arrow C++ of a pyarrow wheel.
#pragma once

#include <string>

#include "data/arrow/arrow_plugin.h"

namespace hyperion::data {

// The release of pyarrow whose libraries are read with, and the number at the end of their names.
inline constexpr const char* kPyarrow = "26.0.1";
inline constexpr const char* kArrowNumber = "2600";

// Loads the plug-in once. pyarrow's libraries are those in the folder of HYPERION_ARROW, which the launchers
// of a package set; without it those that the plug-in was built with. `file` is for the message of an
// Error(kUsage), which says how to install what is missing.
const ArrowPlugin& arrow_plugin(const std::string& file);

}  // namespace hyperion::data
