// HYPERION_DUMP_GRADIENTS=FOLDER: the gradients of step 1 as files, for tests against other trainers.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "parallel/sharded_parameter.h"

namespace hyperion::trainer {

// What the variable says. Throws Error(kUsage) when it is set in a job of several ranks.
std::optional<std::filesystem::path> gradient_dump_folder(int world_size);

// Each parameter's whole gradient as raw little-endian fp32 numbers in <fqn>.f32. Throws Error(kSaveFailed)
// when one cannot be written.
void dump_gradients(const std::filesystem::path& folder,
                    const std::vector<parallel::ShardedParameterPtr>& parameters);

}  // namespace hyperion::trainer
