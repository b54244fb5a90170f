// Formats the versions that `--version` prints and every run records.
#pragma once

#include <string>

namespace hyperion::trainer {

// Returns several lines: Hyperion and its commit, compiler, libtorch, CUDA and NCCL (as built into our CUDA
// library, if it was built), fmt.
std::string version_text();

}  // namespace hyperion::trainer
