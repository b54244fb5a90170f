// The .metadata file of PyTorch's Distributed Checkpoint: the index of a checkpoint folder as one pickle.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "checkpoint/types/index.h"

namespace hyperion::checkpoint {

// The file's content. Every chunk and object must have its location set. Throws Error(kBug) for an index of
// bare bytes.
std::string encode_metadata(const CheckpointIndex& index);

// The index that `bytes`, the content of the file `path`, describe. Checked: every tensor is filled by its
// chunks without gap or overlap, everything has a location, and locations name files in the folder itself
// (whether the files are long enough is checked when they are opened). Throws Error(kBadData) naming path and
// key.
CheckpointIndex decode_metadata(std::span<const std::byte> bytes, const std::string& path);

}  // namespace hyperion::checkpoint
