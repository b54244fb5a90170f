// Which files of a folder are the index of a checkpoint in DCP format.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace hyperion::checkpoint {

// {".metadata"}, or, of a save without collectives (use_collectives=False of PyTorch's DCP), the file of
// every rank: {"__0.metadata", "__1.metadata", ...}. Nothing where `path` is no folder, or none of such a
// checkpoint. Throws Error(kBadData) that names the index where a checkpoint's other files are there without
// it, and without safetensors.
std::vector<std::string> find_index_files(const std::filesystem::path& path);

// Whether the folder holds .metadata or the file of any rank, even where those of others are missing. One
// that cannot be listed does not.
bool has_index_file(const std::filesystem::path& folder);

}  // namespace hyperion::checkpoint
