// The features that a configuration can switch on, with the reason why one is refused that does not exist
// yet. A new feature gets the refusal "" in features.def: the check, --help and the reference follow.
#pragma once

#include <vector>

#include "trainer/config/option.h"

namespace hyperion::config {

#define FEATURE(name, ...) extern const Feature name;
#include "trainer/config/features.def"

const std::vector<const Feature*>& features();

}  // namespace hyperion::config
