// The .metadata file of PyTorch's Distributed Checkpoint: the index of a checkpoint folder as one pickle. A
// save without collectives (use_collectives=False) leaves one such file per rank instead, __0.metadata and so
// on, each with what its rank wrote.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

#include "checkpoint/types/index.h"

namespace hyperion::checkpoint {

// The tensors of an index, for an encoder that never has all their chunks in memory.
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
  // Calls `visit` for the chunks of tensor `number`, each valid during the call only. The encoder asks for
  // those of tensor 0, 1, ..., and then once more.
  virtual void visit_chunks(size_t number, const std::function<void(const Chunk& chunk)>& visit) = 0;
};

// Encodes the file piece by piece, of about a MiB each: `tensors`, and of `rest` all but its tensors.
void encode_metadata(IndexTensors& tensors, const CheckpointIndex& rest,
                     const std::function<void(std::string_view piece)>& take);

// A file of an index that was read.
struct IndexFile {
  std::string name, content;
  static auto members(auto& self) { return std::tie(self.name, self.content); }
};

// The index that `files` of a folder describe together: .metadata, or the files of all ranks in their order.
// What several ranks wrote, a copy each, is read from the first of them. Checked: every tensor is filled by
// its chunks without gap or overlap, everything has a location, and locations name files in the folder itself
// (whether the files are long enough is checked when they are opened). Throws Error(kBadData) naming path and
// key.
CheckpointIndex decode_metadata(const std::filesystem::path& folder, std::span<const IndexFile> files);

}  // namespace hyperion::checkpoint
