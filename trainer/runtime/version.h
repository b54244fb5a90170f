// What `--version` prints and every run records.
#pragma once

#include <string>

namespace hyperion::trainer {

// Several lines: Hyperion and its commit, compiler, libtorch, CUDA and NCCL (of our CUDA library, when it was
// built), fmt.
std::string version_text();

}  // namespace hyperion::trainer
