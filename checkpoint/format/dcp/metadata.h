// Encodes and decodes the .metadata file of PyTorch's Distributed Checkpoint: the index of a checkpoint
// folder as one pickle. A save without collectives (use_collectives=False) has one such file per rank
// instead, __0.metadata and so on, each with what its rank wrote.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

#include "checkpoint/types/index.h"

namespace hyperion::checkpoint {

// The tensors of an index, for an encoder that never holds all their chunks.
class IndexTensors {
 public:
  struct Tensor {
    const std::string& key;
    Dtype dtype;
    const Dims& shape;
    const KeyPath* path;  // null: flat
  };
  virtual ~IndexTensors() = default;
  virtual size_t size() const = 0;
  virtual Tensor at(size_t number) const = 0;
  // Calls `visit` for the chunks of tensor `number`; each is valid during the call only. The encoder asks
  // for tensors 0, 1, ..., then once more in the same order.
  virtual void visit_chunks(size_t number, const std::function<void(const Chunk& chunk)>& visit) = 0;
};

// Encodes the file in pieces of about a MiB: `tensors`, and everything in `rest` except its tensors.
void encode_metadata(IndexTensors& tensors, const CheckpointIndex& rest,
                     const std::function<void(std::string_view piece)>& take);

// An index file with its content.
struct IndexFile {
  std::string name, content;
  static auto members(auto& self) { return std::tie(self.name, self.content); }
};

// Decodes the index that `files` of a folder describe together: .metadata, or the files of all ranks in
// order. A tensor that several ranks replicate is read from the first of them. Checks that every tensor is
// filled by its chunks without gap or overlap, that everything has a location, and that locations name
// files in the folder itself (file lengths are checked when files are opened). Throws Error(kBadData)
// naming path and key.
CheckpointIndex decode_metadata(const std::filesystem::path& folder, std::span<const IndexFile> files);

}  // namespace hyperion::checkpoint
