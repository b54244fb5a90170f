// Reads a checkpoint into the state of a job, whatever mesh wrote it: names are matched first, all of them;
// then every rank reads its part of every tensor and verifies what it reads.
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

// A checkpoint folder that was opened: its index, and the manifest when Hyperion wrote it.
struct OpenCheckpoint {
  std::filesystem::path folder;
  CheckpointIndex index;
  std::optional<Manifest> manifest;

  // The manifest's record of a file; null without a manifest. Throws Error(kBadData) when the manifest does
  // not know the file.
  const FileRecord* record(const std::string& file) const;
};

// Reads the index (.metadata, or that of every rank; without one the headers of safetensors files) and
// hyperion.json; compares them with each other and with the sizes of the files. Throws Error(kBadData) naming
// what does not fit.
OpenCheckpoint open_checkpoint(const std::filesystem::path& folder);

// All files of the index (find_index_files()) of a checkpoint whose manifest was read. Throws Error(kBadData)
// when they are larger than an index may be.
std::vector<IndexFile> read_index(const OpenCheckpoint& checkpoint);

// open_checkpoint() in two steps, so that one rank reads for many. The files of a checkpoint in DCP format
// that describe it; of other checkpoints nothing. Compares hyperion.json with the sizes of the files.
struct IndexFiles {
  std::vector<IndexFile> index;
  std::optional<std::string> manifest;  // hyperion.json, where there is one
  static auto members(auto& self) { return std::tie(self.index, self.manifest); }
};
std::optional<IndexFiles> read_index_files(const std::filesystem::path& folder);
// Rank 0's files on every rank. Collective.
std::optional<IndexFiles> broadcast_index_files(std::optional<IndexFiles> files, Coordinator& ranks);
OpenCheckpoint decode_index_files(const std::filesystem::path& folder, const IndexFiles& files);

// Throws Error(kBadData) when they are of two saves.
void require_same_save(const std::filesystem::path& folder, const Manifest& manifest,
                       const CheckpointIndex& index);

// A chunk of tensor `key` in its file, which outlives the reader. `check_crcs`: what it holds is compared
// with its CRC (safetensors have none). Throws Error(kBadData).
class ChunkReader {
 public:
  ChunkReader(ShardReader& file, const OpenCheckpoint& checkpoint, const std::string& key,
              const TensorRecord& record, const Chunk& chunk, bool check_crcs);
  // The elements of `box`, a box of the tensor inside the chunk, row-major and in the record's type.
  void read(const Box& box, std::byte* out);

 private:
  void read_scaled(const Box& in_chunk, float* out);

  const Chunk& chunk_;
  SliceSource entry_;
  TensorArchive archive_;
  std::vector<float> scales_;         // of blocks, where the chunk has some
  std::vector<std::byte> quantized_;  // what they are for
};

// `box` as counted from `origin`, such as a chunk's offset.
inline Box relative_to(const Dims& origin, Box box) {
  for (size_t d = 0; d < origin.size(); ++d) box.offset[d] -= origin[d];
  return box;
}

// From a row of a tensor of this job to the row of the stored one; empty: rows are the same.
using RowMap = std::function<int64_t(int64_t)>;

// Reads rows [first, first + count) of a tensor of this job, `width` bytes each, whose stored rows are
// scattered in a short stretch (one attention head): fetch(first stored row, rows, where to) is called once
// for the stretch.
void read_mapped_rows(const RowMap& row_map, int64_t first, int64_t count, uint64_t width, std::byte* out,
                      const std::function<void(int64_t first, int64_t count, std::byte* out)>& fetch);

// Which tensors of a checkpoint to load, by the names they have in this job.
struct StoredNames {
  std::map<std::string, std::string> keys;  // name in this job -> key in the index
  // Those, by name, that have a record of their own in place of the index's: made of several tensors, or in
  // another form. One without chunks is not stored, and a load leaves its memory as it is.
  std::map<std::string, std::shared_ptr<const TensorRecord>> made{};
  // For Hugging Face's order of rotary rows. Empty: all rows are the same.
  std::function<RowMap(const std::string& name)> row_map{};
  std::vector<std::string> left_out{};  // tensors of the source for which no model here has a place
};

struct LoadOptions {
  // For messages: what the checkpoint is to fit; how that has a head of its own beside the embedding; the
  // last sentence about names that differ (empty: the keys of [checkpoint] for such).
  std::string subject = "this job";
  std::string untie{};
  std::function<std::string(const NameDifferences& differences)> advice{};
  // Of plan_load:
  bool allow_dtype_cast = false;               // else a stored type that differs is an error
  std::string remedy{};                        // how to allow a cast, for the message
  std::vector<std::string> missing_objects{};  // missing too: reported with the tensors
  // Of load_tensors:
  bool full_verify = false;    // CRCs of archives too, where the manifest's checksums have been compared
  bool verify_finite = false;  // NaN or infinite numbers are an error, after all was read
  std::function<void(uint64_t bytes)> on_progress{};  // with the bytes of the state that have been filled
};

// One tensor of a load, compared by name, shape and type.
struct LoadItem {
  TensorState tensor;                          // to be filled
  std::shared_ptr<const TensorRecord> record;  // owned by the checkpoint's index, or made for this load
  RowMap row_map{};
  std::string key{};  // of the record in the index
  // Further names of the tensor that the checkpoint has, in another place: of the same shape and type. They
  // have to be equal in bytes.
  struct Alias {
    std::string key;
    const TensorRecord* record;  // of the checkpoint's index
  };
  std::vector<Alias> aliases{};
};
// No I/O, no collectives. Throws IncompatibleCheckpoint with ONE message that lists every missing name (with
// the nearest ones that exist), every shape and type that differs; further names of a tensor may be missing,
// and are unexpected where their shape or type is another one than the tensor's.
std::vector<LoadItem> plan_load(const OpenCheckpoint& checkpoint, const std::vector<TensorState>& tensors,
                                const StoredNames& names, const LoadOptions& options);

// Fills this rank's part of every tensor that is here, however the stored one is cut. Where that is wider
// than the part, only runs of its rows are read (see read_box()); blocks that a manifest has checksums of are
// read completely, each once. Memory: two pieces of 64 MiB of a tensor, and what a mapped order of rows adds
// to one. Throws Error(kBadData) naming file, byte range and tensor; IncompatibleCheckpoint for rows in
// another order in a tensor of several pieces, and for an alias that differs from its tensor in this rank's
// part.
struct LoadReport {
  uint64_t bytes = 0;
  double seconds = 0;
};
LoadReport load_tensors(const OpenCheckpoint& checkpoint, const std::vector<LoadItem>& items,
                        MemoryMover& mover, const LoadOptions& options);

// The objects under the keys asked for; keys without an object are left out.
std::map<std::string, Object> load_objects(const OpenCheckpoint& checkpoint,
                                           const std::function<bool(const std::string& key)>& wanted);

}  // namespace hyperion::checkpoint
