// A ContentReader reads any box of any tensor of a checkpoint, verified and in bounded memory, whichever
// program wrote it and however it is sharded.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/loader.h"

namespace hyperion::checkpoint {

constexpr uint64_t kContentPiece = uint64_t{16} << 20;  // maximum bytes of a tensor that tools hold

inline uint64_t bytes_of(Dtype dtype, const Dims& shape) {  // for tensors of an index: their size was checked
  return static_cast<uint64_t>(whole_box(shape).numel()) * size_of(dtype);
}

// Calls take(box) for boxes of at most `max` elements that fill a tensor of `shape`, each a contiguous run
// in row-major order, in that order. It is not called for an empty tensor.
void each_box(const Dims& shape, int64_t max, const std::function<void(const Box&)>& take);

// Not thread-safe. Bytes are compared with the manifest's checksums or, without a manifest, with the CRCs
// of archives (safetensors have neither).
class ContentReader {
 public:
  // The checkpoint must outlive the reader.
  explicit ContentReader(const OpenCheckpoint& checkpoint) : checkpoint_(checkpoint) {}

  // Reads a box of tensor `key`, row-major, into `out`. Throws Error(kBadData) naming file and tensor.
  void read(const std::string& key, const Box& wanted, std::byte* out);
  // Reads by a record other than the index's, which must outlive the reader.
  void read(const std::string& key, const TensorRecord& record, const Box& wanted, std::byte* out);

  // Calls take(box, data) for boxes of at most `max` elements that fill the tensor, as each_box() does.
  using Take = std::function<void(const Box& box, const std::byte* data)>;
  void stream(const std::string& key, int64_t max, const Take& take);

 private:
  ShardReader& file(const std::string& name);
  ChunkReader& chunk(const std::string& key, const TensorRecord& record, const Chunk& chunk);

  const OpenCheckpoint& checkpoint_;
  std::map<std::string, ShardReader> files_;
  std::string key_;                             // the tensor whose chunks are in chunks_
  std::map<const Chunk*, ChunkReader> chunks_;  // they read from files_
  std::vector<std::byte> part_, piece_;
};

// Returns whether two tensors of a checkpoint, of one type and shape, hold the same bytes in `box`.
bool equal_in_box(const OpenCheckpoint& checkpoint, const std::string& a, const TensorRecord& record_a,
                  const std::string& b, const TensorRecord& record_b, const Box& box);

// Throws IncompatibleCheckpoint, with options.untie, unless every alias of the item's tensor in the
// checkpoint holds the same bytes in `box`.
void require_equal_aliases(const OpenCheckpoint& checkpoint, const LoadItem& item, const Box& box,
                           const LoadOptions& options);

}  // namespace hyperion::checkpoint
