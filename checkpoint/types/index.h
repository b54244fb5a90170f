// What a checkpoint folder holds, as data: every tensor with its chunks, every object, and where their bytes
// lie. The .metadata file of PyTorch's DCP is one encoding of it (format/metadata.h), a folder of safetensors
// another.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "checkpoint/types/dtype.h"

namespace hyperion {

using Dims = std::vector<int64_t>;

// A byte range of one file of the folder.
struct Span {
  std::string file;  // one path component, never with a slash
  uint64_t offset = 0;
  uint64_t length = 0;
  bool operator==(const Span&) const = default;
};

// A rectangular piece of a tensor. `where` is a whole archive in DCP files, and the bare bytes in safetensors
// files.
struct Chunk {
  Dims offset;  // of the piece in the tensor
  Dims shape;   // of the piece; may have extents of 0
  Span where;
};

struct TensorRecord {
  Dtype dtype = Dtype::kFloat32;
  Dims shape;  // global
  std::vector<Chunk> chunks;
};

struct ObjectRecord {
  Span where;
};

// A key's path in the nested state it was flattened from ("optimizer", "state.norm.weight.step"); lists have
// whole numbers as parts. A model's key at the root is a path of one part.
using KeyPath = std::vector<std::variant<std::string, int64_t>>;

struct CheckpointIndex {
  enum class Layout {
    kArchives,
    kBareBytes
  };  // what Span points at: torch.save archives, or row-major elements
  Layout layout = Layout::kArchives;
  std::map<std::string, TensorRecord> tensors;
  std::map<std::string, ObjectRecord> objects;
  std::map<std::string, KeyPath> paths;      // keys without an entry stay flat
  std::string save_id;                       // unique for each save; empty when the writer gave none
  std::map<std::string, std::string> notes;  // __metadata__ of safetensors files
};

}  // namespace hyperion
