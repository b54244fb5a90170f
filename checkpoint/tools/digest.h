// Hashes of a checkpoint's contents that do not depend on its files, on the number of ranks,
// or on the program that wrote it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/loader.h"
#include "checkpoint/types/object.h"

namespace hyperion::checkpoint {

// Which keys are included.
struct Selection {
  std::string prefix{};     // keys that begin so
  std::string component{};  // "model", "optimizer", ... (component_of in checkpoint/state.h); empty: all
  bool all = false;         // also what describes the run, not the state (describes_run)
  bool has(const std::string& key) const;
};

// Whether a key describes the run that wrote the checkpoint rather than the state of training: generators and
// loaders of single ranks, the number of ranks, counts of one rank, and the configuration. Two meshes at the
// same step differ in them.
bool describes_run(const std::string& key);

// One text for each value, the same for equal ones: keys of dicts and items of sets are sorted, numbers keep
// their kind and all digits.
std::string canonical_text(const Object& object);

struct DigestEntry {
  std::string key;
  bool is_tensor = true;
  Dtype dtype = Dtype::kFloat32;  // of tensors
  Dims shape;
  uint64_t hash = 0;  // XXH3-64 of the tensor's row-major bytes, or of canonical_text()

  std::string line() const;  // "0123456789abcdef  bfloat16  layers.0.norm.weight  [64]"
};
struct Digest {
  std::vector<DigestEntry> entries;  // by key
  uint64_t total() const;            // XXH3-64 of all lines, each with its end
};

// Reads all contents, in bounded memory, with a progress line. Throws Error(kBadData).
Digest digest_of(const OpenCheckpoint& checkpoint, const Selection& only = {});
Digest digest_of(const std::filesystem::path& checkpoint, const Selection& only = {});

}  // namespace hyperion::checkpoint
