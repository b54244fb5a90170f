// The content of a checkpoint folder, as data: every tensor with its chunks, every object, and the location
// of their bytes. The .metadata file of PyTorch's DCP is one encoding of it (format/metadata.h), a folder
// of safetensors another.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <fmt/ranges.h>

#include "checkpoint/types/dtype.h"

namespace hyperion::checkpoint {

using Dims = std::vector<int64_t>;

// "float32 [8, 4]"
inline std::string describe_tensor(Dtype dtype, const Dims& shape) {
  return fmt::format("{} [{}]", torch_name(dtype), fmt::join(shape, ", "));
}

struct NamedTensor {
  std::string name;
  Dtype dtype = Dtype::kFloat32;
  Dims shape;
};

// Returns whether the name stays in its folder: one path component of at most 255 bytes.
inline bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." && name.find('/') == name.npos &&
         name.find('\0') == name.npos;
}

// A byte range of one file of the folder.
struct Span {
  std::string file;  // a plain name
  uint64_t offset = 0;
  uint64_t length = 0;
  bool operator==(const Span&) const = default;
};

// Describes another program's bare bytes if they are not the piece's elements in row-major order.
struct ForeignForm {
  // The position of the piece's elements among those in the bytes: the first one, and the strides of each
  // dimension. Empty: row-major.
  Dims strides;
  int64_t first = 0;
  // If `scales` names a file, the record's type is float32, and the bytes are encoded. kFloat8: they are
  // float8_e4m3fn, a matrix of the piece's last two dimensions, in which each square of `block` rows and
  // columns is multiplied by its float32 scale, row-major. kFloat4: they are MXFP4, two numbers per byte, the
  // first one in the lower four bits, and each `block` numbers of a row have one scale, a byte: the exponent
  // of a power of two plus 127.
  enum class Encoding { kFloat8, kFloat4 };
  Span scales;
  int64_t block = 0;
  Encoding encoding = Encoding::kFloat8;
};

// A rectangular piece of a tensor. `where` is a complete archive in DCP files, or the bare bytes in
// safetensors files.
struct Chunk {
  Dims offset;  // position of the piece in the tensor
  Dims shape;   // shape of the piece; may have extents of 0
  Span where;
  std::shared_ptr<const ForeignForm> form{};  // for bare bytes; null: the elements, row-major
};

struct TensorRecord {
  Dtype dtype = Dtype::kFloat32;
  Dims shape;  // global
  std::vector<Chunk> chunks;
};

struct ObjectRecord {
  Span where;
};

// The path of a key in the nested state from which it was flattened ("optimizer",
// "state.norm.weight.step"); lists have integers as parts. A model's key at the root is a path of one part.
using KeyPath = std::vector<std::variant<std::string, int64_t>>;

struct CheckpointIndex {
  enum class Layout {
    kArchives,
    kBareBytes
  };  // what Span points at: torch.save archives, or row-major elements
  Layout layout = Layout::kArchives;
  std::map<std::string, TensorRecord> tensors;
  std::map<std::string, ObjectRecord> objects;
  std::map<std::string, KeyPath> paths;      // keys without an entry are flat
  std::string save_id;                       // unique per save; empty if the writer set none
  std::map<std::string, std::string> notes;  // __metadata__ of safetensors files
};

}  // namespace hyperion::checkpoint
