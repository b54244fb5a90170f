// Hashes of a checkpoint's contents that do not depend on its files, on the number of ranks,
// or on the program that wrote it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/tools/content.h"
#include "checkpoint/types/object.h"

namespace hyperion::checkpoint {

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

}  // namespace hyperion::checkpoint
