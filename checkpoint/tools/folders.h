// What the tools need to know of folders before they open a checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "checkpoint/storage/checkpoint_folder.h"

namespace hyperion::checkpoint {

// Whether `path` itself is a checkpoint (a DCP folder, one with safetensors, or a .safetensors file) and not
// a folder of checkpoints. Throws Error(kUsage) when it does not exist or is some other file.
bool is_checkpoint(const std::filesystem::path& path);

// "out: no checkpoints; did you mean out/checkpoint?", the question only where some are there.
std::string no_checkpoints(const std::filesystem::path& folder);

// For commands that take one checkpoint and no folder of them. Throws Error(kUsage) that says what the path
// is instead and names a checkpoint near it.
void require_checkpoint(const std::filesystem::path& path);

struct FolderSize {
  uint64_t files = 0, bytes = 0;
};
FolderSize folder_size(const std::filesystem::path& path);  // of a folder's own files, or of one file

int64_t time_of(const StepFolder& found);  // when it was written, by manifest or file times; unix seconds
std::string kind_label(CheckpointKind kind);

}  // namespace hyperion::checkpoint
