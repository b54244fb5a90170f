// Reads a checkpoint into the state of a job, whichever mesh wrote it. All names are matched first; then
// every rank reads its part of every tensor and verifies it.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/collective.h"
#include "checkpoint/format/dcp/archive.h"
#include "checkpoint/format/dcp/metadata.h"
#include "checkpoint/names.h"
#include "checkpoint/state.h"
#include "checkpoint/storage/manifest.h"
#include "checkpoint/storage/shard_reader.h"
#include "checkpoint/types/index.h"
#include "checkpoint/types/object.h"

namespace hyperion::checkpoint {

// An opened checkpoint folder: its index, and the manifest if Hyperion wrote it.
struct OpenCheckpoint {
  std::filesystem::path folder;
  CheckpointIndex index;
  std::optional<Manifest> manifest;

  // The manifest's record of a file; null without a manifest. Throws Error(kBadData) if the manifest does
  // not list the file.
  const FileRecord* record(const std::string& file) const;
};

// Reads the index (.metadata, or every rank's; without one the headers of safetensors files) and
// hyperion.json, and compares them with each other and with the file sizes. Throws Error(kBadData) naming
// the mismatch.
OpenCheckpoint open_checkpoint(const std::filesystem::path& folder);

// Reads all index files (find_index_files()) of a checkpoint whose manifest was read. Throws
// Error(kBadData) if they are larger than an index may be.
std::vector<IndexFile> read_index(const OpenCheckpoint& checkpoint);

// open_checkpoint() in two steps, so that one rank reads for all. read_index_files() reads the files that
// describe a checkpoint in DCP format and compares hyperion.json with the file sizes; nullopt for other
// checkpoints.
struct IndexFiles {
  std::vector<IndexFile> index;
  std::optional<std::string> manifest;  // hyperion.json, if there is one
  static auto members(auto& self) { return std::tie(self.index, self.manifest); }
};
std::optional<IndexFiles> read_index_files(const std::filesystem::path& folder);
// Returns rank 0's files on every rank. Collective.
std::optional<IndexFiles> broadcast_index_files(std::optional<IndexFiles> files, Coordinator& group);
OpenCheckpoint decode_index_files(const std::filesystem::path& folder, const IndexFiles& files);

// Throws Error(kBadData) if manifest and index belong to different saves.
void require_same_save(const std::filesystem::path& folder, const Manifest& manifest,
                       const CheckpointIndex& index);

// Reads a chunk of tensor `key` from its file, which must outlive the reader. `check_crcs` compares the
// content with its CRC (safetensors have none). Throws Error(kBadData).
class ChunkReader {
 public:
  ChunkReader(ShardReader& file, const OpenCheckpoint& checkpoint, const std::string& key,
              const TensorRecord& record, const Chunk& chunk, bool check_crcs);
  // Reads the elements of `box`, a box of the tensor inside the chunk, row-major and in the record's type.
  void read(const Box& box, std::byte* out);

 private:
  void read_float8(const Box& in_chunk, float* out);
  void read_float4(Box in_chunk, float* out);

  const Chunk& chunk_;
  SliceSource entry_;
  TensorArchive archive_;
  std::vector<float> scales_;         // block scales of float8 numbers
  std::vector<std::byte> quantized_;  // elements to be multiplied by scales
  // Scales of MXFP4 numbers, of which read() reads those of its box.
  std::unique_ptr<ShardReader> scale_file_;
  std::optional<SliceSource> scale_entry_;
  TensorArchive scale_archive_;
  std::vector<std::byte> exponents_;
};

// `box` relative to `origin`, such as a chunk's offset.
inline Box relative_to(const Dims& origin, Box box) {
  for (size_t d = 0; d < origin.size(); ++d) box.offset[d] -= origin[d];
  return box;
}

// Maps a row of this job's tensor to the stored row; empty: identity.
using RowMap = std::function<int64_t(int64_t)>;

// Reads rows [first, first + count) of a tensor of this job, `width` bytes each, whose stored rows are
// scattered within a short range (one attention head): fetch(first stored row, count, out) is called once
// for that range.
void read_mapped_rows(const RowMap& row_map, int64_t first, int64_t count, uint64_t width, std::byte* out,
                      const std::function<void(int64_t first, int64_t count, std::byte* out)>& fetch);

// The tensors of a checkpoint to load, by their names in this job.
struct StoredNames {
  std::map<std::string, std::string> keys;  // name in this job -> key in the index
  // Records, by name, that replace the index's: combined from several tensors, or in another form. A record
  // without chunks is not stored, and a load leaves its memory unchanged.
  std::map<std::string, std::shared_ptr<const TensorRecord>> records{};
  // For Hugging Face's order of rotary rows. Empty: identity for all tensors.
  std::function<RowMap(const std::string& name)> row_map{};
  std::vector<std::string> left_out{};  // tensors of the source that no model here uses
};

struct LoadOptions {
  // For messages: what the checkpoint must fit; how to give it an untied head; the last sentence about
  // names that differ (empty: the keys of [checkpoint] for that).
  std::string subject = "this job";
  std::string untie{};
  std::function<std::string(const NameDifferences& differences)> advice{};
  // Used by plan_load():
  bool allow_dtype_cast = false;               // false: another stored type is an error
  std::string remedy{};                        // how to allow a cast, for the message
  std::vector<std::string> missing_objects{};  // reported with the missing tensors
  // Used by load_tensors():
  bool full_verify = false;    // verify CRCs of archives even if the manifest has checksums
  bool verify_finite = false;  // throw for NaN or infinite numbers, after reading everything
  std::function<void(uint64_t bytes)> on_progress{};  // called with the bytes of state filled so far
};

// One tensor of a load, compared by name, shape and type.
struct LoadItem {
  TensorState tensor;                          // the tensor to fill
  std::shared_ptr<const TensorRecord> record;  // owned by the checkpoint's index, or built for this load
  RowMap row_map{};
  std::string key{};  // the record's key in the index
  // Another name of the tensor in the checkpoint, with its own storage of the same shape and type. The
  // bytes must be equal.
  struct Alias {
    std::string key;
    const TensorRecord* record;  // owned by the checkpoint's index
  };
  std::vector<Alias> aliases{};
};
// No I/O, no collectives. Throws IncompatibleCheckpoint with ONE message that lists every missing name
// (with the nearest existing ones) and every shape and type that differs. Aliases of a tensor may be
// missing; an alias whose shape or type is not the tensor's counts as unexpected.
std::vector<LoadItem> plan_load(const OpenCheckpoint& checkpoint, const std::vector<TensorState>& tensors,
                                const StoredNames& names, const LoadOptions& options);

// Fills this rank's part of every local tensor, however the stored one is sharded. If the stored tensor is
// wider than the part, only runs of its rows are read (see read_box()); blocks with a checksum in the
// manifest are read completely, each once. Memory: two pieces of 64 MiB of a tensor, and one piece's extra
// rows for a row map. Throws Error(kBadData) naming file, byte range and tensor; IncompatibleCheckpoint for
// a row map on a tensor of several chunks, and for an alias that differs from its tensor in this rank's
// part.
struct LoadReport {
  uint64_t bytes = 0;
  double seconds = 0;
};
LoadReport load_tensors(const OpenCheckpoint& checkpoint, const std::vector<LoadItem>& items,
                        MemoryMover& mover, const LoadOptions& options);

// Loads the objects whose keys are `wanted`; keys without an object are left out.
std::map<std::string, Object> load_objects(const OpenCheckpoint& checkpoint,
                                           const std::function<bool(const std::string& key)>& wanted);

}  // namespace hyperion::checkpoint
