// Writes weights of a job as one folder of safetensors: every rank its own parts into the same files, so that
// no rank ever holds a complete tensor.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/collective.h"
#include "checkpoint/state.h"
#include "checkpoint/storage/checkpoint_folder.h"
#include "checkpoint/types/stored_part.h"

namespace hyperion::checkpoint {

struct ExportedTensor {
  const TensorState* tensor = nullptr;
  std::string name;                           // in the files
  Dtype dtype = Dtype::kFloat32;              // in the files
  std::function<int64_t(int64_t)> row_map{};  // from a row of the tensor to the stored row; empty: the same
  StoredPart part{};  // without a row_map: where the tensor is in the stored one, which several may share
};

// The folder becomes step-<step> of `folder`, atomically. `more_files`: name and content, written
// next to it (config.json). `notes`: see plan_safetensors. Collective. Throws Error(kSaveFailed), or
// Error(kNonFinite) for NaN and infinite numbers, with the same text on every rank.
void export_safetensors(int64_t step, const std::string& save_id, const std::vector<ExportedTensor>& tensors,
                        const std::map<std::string, std::string>& more_files,
                        const std::map<std::string, std::string>& notes, const CheckpointFolder& folder,
                        Coordinator& ranks, MemoryMover& mover);

}  // namespace hyperion::checkpoint
