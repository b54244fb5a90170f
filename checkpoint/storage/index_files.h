// Finds the index files of a checkpoint in DCP format.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace hyperion::checkpoint {

// Returns {".metadata"}, or for a save without collectives (use_collectives=False of PyTorch's DCP) every
// rank's file: {"__0.metadata", "__1.metadata", ...}. Empty if `path` is not a folder or holds no such
// checkpoint. Throws Error(kBadData) naming the index if a checkpoint's other files are there without it,
// and without safetensors.
std::vector<std::string> find_index_files(const std::filesystem::path& path);

// Returns whether the folder holds .metadata or any rank's file, even if other ranks' are missing. False for
// a folder that cannot be listed.
bool has_index_file(const std::filesystem::path& folder);

}  // namespace hyperion::checkpoint
