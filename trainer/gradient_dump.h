// HYPERION_DUMP_GRADIENTS=FOLDER: the gradients of step 1 as files, for tests against other trainers.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "parallel/fsdp/sharded_parameter.h"

namespace hyperion::trainer {

// What the variable says.
std::optional<std::filesystem::path> gradient_dump_folder();

// On one rank: each parameter's gradient as raw little-endian fp32 numbers in <fqn>.f32. On several, each
// rank writes the boxes that it holds to rank_<rank>.gradients, which scripts/join_gradients.py joins to such
// files: one line of JSON
//   {"rank": 1, "ranks": 4, "parameters": [{"name": "norm.weight", "shape": [18], "offset": [9],
//    "extent": [9]}, ...]}
// (shape: of the whole tensor; offset and extent: the box of it that the rank holds, perhaps empty), then the
// boxes' numbers in that order, row-major, little-endian fp32. Throws Error(kSaveFailed) when a file cannot
// be written.
void dump_gradients(const std::filesystem::path& folder, int rank, int ranks,
                    const std::vector<parallel::ShardedParameterPtr>& parameters);

}  // namespace hyperion::trainer
