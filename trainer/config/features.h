// What a configuration can switch on, with the sentence that refuses it where it does not exist (yet).
// Whoever builds a feature empties its refusal in features.def: the check, --help and the docs follow.
#pragma once

#include <vector>

#include "trainer/config/option.h"

namespace hyperion {

#define FEATURE(name, ...) extern const Feature name;
#include "trainer/config/features.def"

const std::vector<const Feature*>& features();

}  // namespace hyperion
