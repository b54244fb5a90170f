// Writes a job's weights as one folder of safetensors. Every rank writes its own parts into the same files,
// so no rank ever holds a complete tensor.
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
  std::string name;                           // name in the files
  Dtype dtype = Dtype::kFloat32;              // type in the files
  std::function<int64_t(int64_t)> row_map{};  // maps a row of the tensor to the stored row; empty: identity
  StoredPart part{};  // without a row_map: position in the stored tensor, which several tensors may share
};

// Writes step-<step> of `folder`, atomically. `more_files` (name -> content) are written next to the
// weights (config.json). For `notes` see plan_safetensors. Collective. Throws Error(kSaveFailed), or
// Error(kNonFinite) for NaN and infinite numbers, with the same text on every rank.
void export_safetensors(int64_t step, const std::string& save_id, const std::vector<ExportedTensor>& tensors,
                        const std::map<std::string, std::string>& more_files,
                        const std::map<std::string, std::string>& notes, const CheckpointFolder& folder,
                        Coordinator& group, MemoryMover& mover);

}  // namespace hyperion::checkpoint
