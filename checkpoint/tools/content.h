// Selects the tensors of a checkpoint that digest, diff and convert read, and their order.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/content_reader.h"

namespace hyperion::checkpoint {

// Selects keys.
struct Selection {
  std::string prefix{};     // keys that begin with it
  std::string component{};  // "model", "optimizer", ... (component_of in checkpoint/state.h); empty: all
  bool all = false;         // include keys that describe the run, not the state (describes_run)
  bool has(const std::string& key) const;
};

// Returns whether a key describes the run that wrote the checkpoint rather than the state of training:
// generators and loaders of single ranks, the number of ranks, counts of one rank, and the configuration. Two
// meshes at the same step differ in them.
bool describes_run(const std::string& key);

// The keys of tensors in the order of their data in the files, for one pass over each file.
std::vector<std::string> keys_in_file_order(const CheckpointIndex& index, const Selection& only);

}  // namespace hyperion::checkpoint
