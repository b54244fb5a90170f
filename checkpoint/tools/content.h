// The contents of a checkpoint, whatever wrote it and however it is sharded: any box of any tensor, verified
// and in bounded memory, and the order in which tensors are streamed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/format/dcp/archive.h"
#include "checkpoint/loader.h"
#include "checkpoint/storage/shard_reader.h"

namespace hyperion::checkpoint {

constexpr uint64_t kContentPiece = uint64_t{16} << 20;  // bytes of a tensor that tools hold at a time

int64_t elements_of(const Dims& shape);  // 1 without dimensions; Error(kBadData) from 2^63 on

// Calls take(box) for boxes of at most `most` elements that fill a tensor of `whole`, each a contiguous run
// of its row-major order, in that order. None for a tensor without elements.
void each_box(const Dims& whole, int64_t most, const std::function<void(const Box&)>& take);

// For one thread. What is read was compared with the manifest's checksums, or, without a manifest, with the
// CRCs of archives (safetensors have neither).
class ContentReader {
 public:
  // The checkpoint must outlive the reader.
  explicit ContentReader(const OpenCheckpoint& checkpoint) : checkpoint_(checkpoint) {}

  // A box of tensor `key`, row-major, to `out`. Throws Error(kBadData) naming file and tensor.
  void read(const std::string& key, const Box& wanted, std::byte* out);

  // Calls take(data, bytes) for all of the tensor in row-major order, at most kContentPiece bytes at a time.
  using Take = std::function<void(const std::byte* data, uint64_t bytes)>;
  void stream(const std::string& key, const Take& take);

 private:
  ShardReader& file(const std::string& name);
  const TensorArchive& archive_of(const std::string& key, const TensorRecord& record, const Chunk& chunk);

  const OpenCheckpoint& checkpoint_;
  std::map<std::string, std::unique_ptr<ShardReader>> files_;
  std::vector<std::string> opened_;  // names in files_, the oldest first
  std::string key_;                  // whose archives are in archives_
  std::map<const Chunk*, TensorArchive> archives_;
  std::vector<std::byte> part_, piece_;
};

// All keys of tensors in the order of their data in the files: for one pass over each.
std::vector<std::string> keys_in_file_order(const CheckpointIndex& index);

}  // namespace hyperion::checkpoint
