// Examines folders before a tool opens a checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "checkpoint/storage/checkpoint_folder.h"

namespace hyperion::checkpoint {

// Returns whether `path` itself is a checkpoint (a DCP folder, one with safetensors, or a .safetensors file)
// and not a folder of checkpoints. Throws Error(kUsage) if it does not exist or is another kind of file.
bool is_checkpoint(const std::filesystem::path& path);

// "out: no checkpoints; did you mean out/checkpoint?"; it asks only if there are some.
std::string no_checkpoints(const std::filesystem::path& folder);

// For commands that take one checkpoint and no folder of them: throws Error(kUsage) saying what the path is
// instead and naming a checkpoint near it.
void require_checkpoint(const std::filesystem::path& path);

struct FolderSize {
  uint64_t files = 0, bytes = 0;
};
FolderSize folder_size(const std::filesystem::path& path);  // a folder's direct files, or one file

int64_t time_of(const StepFolder& checkpoint);  // unix time of writing, by manifest or file times
std::string kind_label(CheckpointKind kind);

}  // namespace hyperion::checkpoint
