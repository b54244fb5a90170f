#include "checkpoint/loader.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/clock.h"
#include "base/collective.h"
#include "base/error.h"
#include "base/failpoint.h"
#include "base/files.h"
#include "base/printable.h"
#include "checkpoint/cast.h"
#include "checkpoint/finite.h"
#include "checkpoint/format/dcp/archive.h"
#include "checkpoint/format/dcp/metadata.h"
#include "checkpoint/format/safetensors/safetensors.h"
#include "checkpoint/names.h"
#include "checkpoint/storage/shard_reader.h"

namespace hyperion::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kPiece = uint64_t{64} << 20;  // bytes that are converted or moved to a device at a time

uint64_t row_bytes(Dtype dtype, const Dims& shape) {
  uint64_t bytes = size_of(dtype);
  for (size_t i = 1; i < shape.size(); ++i) bytes *= static_cast<uint64_t>(shape[i]);
  return bytes;
}

// One chunk that has rows of this rank.
struct ChunkRead {
  const LoadItem* item;
  const Chunk* chunk;
};

// Rows of this rank that the chunk has: [begin, end), none when end <= begin.
std::pair<int64_t, int64_t> common_rows(const ChunkRead& read) {
  const Rows wanted = read.item->tensor.rows();
  const Rows stored = read.item->tensor.shape.empty()
                          ? Rows{0, 1}
                          : Rows{read.chunk->offset.front(), read.chunk->shape.front()};
  return {std::max(wanted.begin, stored.begin),
          std::min(wanted.begin + wanted.count, stored.begin + stored.count)};
}

// What ChunkReader and RowLoader are going to read of an archive that we wrote: its head, then the rows.
void add_ranges(const ChunkRead& read, std::vector<ByteRange>& ranges) {
  const auto& [where, dtype, shape] =
      std::tie(read.chunk->where, read.item->record->dtype, read.chunk->shape);
  const auto [begin, end] = common_rows(read);
  if (read.item->row_map || shape.empty() || end <= begin)
    return ranges.push_back({where.offset, where.length});
  const uint64_t head = tensor_archive_head(dtype, shape).size(), width = row_bytes(dtype, shape);
  ranges.push_back({where.offset, head});
  ranges.push_back({where.offset + head + static_cast<uint64_t>(begin - read.chunk->offset.front()) * width,
                    static_cast<uint64_t>(end - begin) * width});
}

// The bytes of one chunk: rows in the stored type, verified.
class ChunkReader {
 public:
  ChunkReader(ShardReader& file, const OpenCheckpoint& checkpoint, const ChunkRead& read, bool check_crcs)
      : read_(read), entry_(file, read.chunk->where.offset, read.chunk->where.length) {
    const Dtype dtype = read.item->record->dtype;
    const Dims& shape = read.chunk->shape;
    if (checkpoint.index.layout == CheckpointIndex::Layout::kBareBytes) {
      data_offset_ = 0;
      return;
    }
    // The layout of what we write ourselves is known; everything else is parsed.
    const std::string head = tensor_archive_head(dtype, shape);
    if (entry_.size() == tensor_archive_bytes(dtype, shape) && entry_.read_text(0, head.size()) == head &&
        !check_crcs) {
      data_offset_ = head.size();
      return;
    }
    archive_ = open_tensor_archive(entry_, read.item->tensor.key, *read.item->record, *read.chunk);
    if (check_crcs) check_crc(entry_, *archive_);
  }

  // Rows [first, first + count) of the chunk, row-major.
  void rows(int64_t first, int64_t count, std::byte* out) {
    if (archive_ && archive_->shape.empty()) return read_box(entry_, *archive_, {}, {}, out);
    if (archive_) return read_rows(entry_, *archive_, first, count, out);
    const uint64_t bytes = row_bytes(read_.item->record->dtype, read_.chunk->shape);
    entry_.read(data_offset_ + static_cast<uint64_t>(first) * bytes, out,
                static_cast<uint64_t>(count) * bytes);
  }

 private:
  const ChunkRead& read_;
  SliceSource entry_;
  uint64_t data_offset_ = 0;
  std::optional<TensorArchive> archive_;
};

// Copies rows of chunks into a tensor of the state.
class RowLoader {
 public:
  RowLoader(MemoryMover& mover, const LoadOptions& options) : mover_(mover), options_(options) {}

  void load(const ChunkRead& read, ChunkReader& chunk) {
    if (read.item->row_map) return load_mapped(read, chunk);
    const auto [begin, end] = common_rows(read);
    const int64_t stored = read.chunk->shape.empty() ? 0 : read.chunk->offset.front();
    each_piece(read, begin, end,
               [&](int64_t first, int64_t count, std::byte* out) { chunk.rows(first - stored, count, out); });
  }

  uint64_t bytes() const { return bytes_; }
  const NotFinite& not_finite() const { return not_finite_; }

 private:
  void load_mapped(const ChunkRead& read, ChunkReader& chunk) {
    const Rows wanted = read.item->tensor.rows();
    const uint64_t width = row_bytes(read.item->record->dtype, read.item->record->shape);
    const auto fetch = [&](int64_t first, int64_t count, std::byte* out) { chunk.rows(first, count, out); };
    each_piece(read, wanted.begin, wanted.begin + wanted.count,
               [&](int64_t first, int64_t count, std::byte* out) {
                 read_mapped_rows(read.item->row_map, first, count, width, out, fetch);
               });
  }

  // Calls fetch(first row, rows, out) for pieces of rows [begin, end) of the tensor, and puts what it
  // fetched, in the stored type, into the tensor's memory. One piece where that is host memory of the same
  // type.
  template <typename Fetch>
  void each_piece(const ChunkRead& read, int64_t begin, int64_t end, const Fetch& fetch) {
    const TensorState& tensor = read.item->tensor;
    const Dtype stored = read.item->record->dtype;
    const uint64_t from_width = row_bytes(stored, tensor.shape),
                   to_width = row_bytes(tensor.dtype, tensor.shape);
    if (from_width == 0 || end <= begin) return;
    const bool direct = !tensor.on_device && stored == tensor.dtype;
    const int64_t step = direct && !read.item->row_map
                             ? end - begin
                             : std::max<int64_t>(1, static_cast<int64_t>(kPiece / from_width));
    for (int64_t row = begin; row < end; row += step) {
      const int64_t count = std::min(step, end - row);
      const uint64_t to_offset = static_cast<uint64_t>(row - tensor.rows().begin) * to_width;
      const uint64_t to_bytes = static_cast<uint64_t>(count) * to_width;
      std::byte* out = direct ? static_cast<std::byte*>(tensor.data) + to_offset
                              : buffer(fetched_, static_cast<uint64_t>(count) * from_width);
      fetch(row, count, out);
      bytes_ += static_cast<uint64_t>(count) * from_width;
      filled_ += to_bytes;
      if (stored != tensor.dtype) {
        std::byte* converted = tensor.on_device ? buffer(converted_, to_bytes)
                                                : static_cast<std::byte*>(tensor.data) + to_offset;
        cast(stored, out, tensor.dtype, converted, to_bytes / size_of(tensor.dtype));
        out = converted;
      }
      if (options_.verify_finite) not_finite_.scan(tensor.key, tensor.dtype, out, to_bytes);
      if (tensor.on_device) {
        mover_.from_host(tensor, to_offset, out, to_bytes);
        mover_.finish();
      }
      if (options_.on_progress) options_.on_progress(filled_);
    }
  }

  struct Buffer {
    std::shared_ptr<std::byte> data;
    uint64_t bytes = 0;
  };
  std::byte* buffer(Buffer& buffer, uint64_t bytes) {
    if (buffer.bytes < bytes) buffer = {mover_.allocate(bytes), bytes};
    return buffer.data.get();
  }

  MemoryMover& mover_;
  const LoadOptions& options_;
  Buffer fetched_, converted_;
  NotFinite not_finite_;
  uint64_t bytes_ = 0;   // read
  uint64_t filled_ = 0;  // of the state
};

// Chunks of the item that hold rows of this rank. Rows must not be split: chunks cut along other dimensions
// come from meshes with tensor parallelism.
void find_chunks(const LoadItem& item, const OpenCheckpoint& checkpoint, std::vector<ChunkRead>& reads) {
  const Rows wanted = item.tensor.rows();
  if (wanted.count == 0) return;
  for (const Chunk& chunk : item.record->chunks) {
    for (size_t d = 1; d < chunk.shape.size(); ++d) {
      if (chunk.shape[d] != item.record->shape[d])
        throw_incompatible(
            "{}: tensor {} is cut along dimension {}, which is not supported (only rows may be): write it "
            "again without tensor parallelism",
            checkpoint.folder.string(), item.tensor.key, d);
    }
    const bool overlap = chunk.shape.empty() ||
                         (chunk.shape.front() > 0 && chunk.offset.front() < wanted.begin + wanted.count &&
                          wanted.begin < chunk.offset.front() + chunk.shape.front());
    if (overlap || item.row_map) reads.push_back({&item, &chunk});
  }
  if (item.row_map && item.record->chunks.size() != 1)
    throw_incompatible("{}: tensor {} is in {} pieces: consolidate the safetensors files first",
                       checkpoint.folder.string(), item.tensor.key, item.record->chunks.size());
}

// Performs `reads`, which are of one file and ordered by offset.
void load_file(const OpenCheckpoint& checkpoint, std::span<const ChunkRead> reads, const LoadOptions& options,
               RowLoader& rows) {
  const bool archives = checkpoint.index.layout == CheckpointIndex::Layout::kArchives;
  const bool check_crcs = archives && (!checkpoint.manifest || options.full_verify);
  const std::string& name = reads.front().chunk->where.file;
  ShardReader file(checkpoint.folder, name, checkpoint.record(name),
                   archives ? Links::kRefuse : Links::kFollow);
  if (archives && !check_crcs) {
    std::vector<ByteRange> ranges;
    for (const ChunkRead& read : reads) add_ranges(read, ranges);
    file.expect(ranges);
  }
  for (const ChunkRead& read : reads) {
    ChunkReader chunk(file, checkpoint, read, check_crcs);
    rows.load(read, chunk);
  }
}

}  // namespace

const FileRecord* OpenCheckpoint::record(const std::string& file) const {
  if (!manifest) return nullptr;
  const auto found = std::ranges::find(manifest->files, file, &FileRecord::name);
  if (found == manifest->files.end())
    throw_data("{}: .metadata names the file {}, which hyperion.json does not list", folder.string(), file);
  return &*found;
}

std::optional<IndexFiles> read_index_files(const fs::path& folder) {
  if (!name_exists(folder / ".metadata")) return std::nullopt;
  IndexFiles files;
  OpenCheckpoint checkpoint;  // for the record of .metadata
  checkpoint.folder = folder;
  if (name_exists(folder / kManifestFile)) {
    files.manifest = read_manifest_text(folder);
    checkpoint.manifest = manifest_from_json(*files.manifest, printable(folder / kManifestFile));
    check_sizes(folder, *checkpoint.manifest);
  }
  ShardReader file(folder, ".metadata", checkpoint.record(".metadata"));
  files.metadata = file.read_text(0, file.size());
  return files;
}

namespace {

// Rank 0's text on every rank, in pieces: what is under way takes no second copy of a long one.
std::string broadcast_text(const std::string& text, Coordinator& ranks) {
  constexpr size_t kBroadcastPiece = size_t{16} << 20;
  const size_t size = std::stoull(ranks.broadcast(std::to_string(text.size())));
  std::string whole;
  whole.reserve(size);
  while (whole.size() < size)
    whole += ranks.broadcast(ranks.rank() == 0 ? text.substr(whole.size(), kBroadcastPiece) : std::string());
  return whole;
}

}  // namespace

std::optional<IndexFiles> broadcast_index_files(std::optional<IndexFiles> files, Coordinator& ranks) {
  if (ranks.size() == 1) return files;
  const std::string parts = ranks.broadcast(!files ? "" : files->manifest ? "2" : "1");
  if (parts.empty()) return std::nullopt;
  if (!files) files.emplace();  // not rank 0
  files->metadata = broadcast_text(files->metadata, ranks);
  if (parts == "2") files->manifest = broadcast_text(files->manifest.value_or(""), ranks);
  return files;
}

OpenCheckpoint decode_index_files(const fs::path& folder, const IndexFiles& files) {
  failpoint("load.meta");
  OpenCheckpoint checkpoint;
  checkpoint.folder = folder;
  if (files.manifest)
    checkpoint.manifest = manifest_from_json(*files.manifest, printable(folder / kManifestFile));
  checkpoint.index =
      decode_metadata(std::as_bytes(std::span(files.metadata)), printable(folder / ".metadata"));
  if (checkpoint.manifest) require_same_save(folder, *checkpoint.manifest, checkpoint.index);
  return checkpoint;
}

OpenCheckpoint open_checkpoint(const fs::path& folder) {
  if (const std::optional<IndexFiles> files = read_index_files(folder))
    return decode_index_files(folder, *files);
  failpoint("load.meta");
  OpenCheckpoint checkpoint;
  checkpoint.folder = is_folder(folder) ? folder : folder.parent_path();
  checkpoint.index = read_safetensors(folder);
  return checkpoint;
}

void require_same_save(const fs::path& folder, const Manifest& manifest, const CheckpointIndex& index) {
  if (manifest.save_id != index.save_id)
    throw_data("{}: hyperion.json belongs to save {}, .metadata to save {}: files of two saves are mixed",
               folder.string(), manifest.save_id, index.save_id);
}

void read_mapped_rows(const RowMap& row_map, int64_t first, int64_t count, uint64_t width, std::byte* out,
                      const std::function<void(int64_t first, int64_t count, std::byte* out)>& fetch) {
  std::vector<int64_t> stored;
  for (int64_t row = first; row < first + count; ++row) stored.push_back(row_map(row));
  if (stored.empty()) return;
  const auto [low, high] = std::ranges::minmax(stored);
  std::vector<std::byte> stretch(static_cast<uint64_t>(high - low + 1) * width);
  fetch(low, high - low + 1, stretch.data());
  for (const int64_t row : stored) {
    std::memcpy(out, stretch.data() + static_cast<uint64_t>(row - low) * width, width);
    out += width;
  }
}

std::vector<LoadItem> plan_load(const OpenCheckpoint& checkpoint, const std::vector<TensorState>& tensors,
                                const StoredNames& names, const LoadOptions& options) {
  std::vector<std::string> wanted, found;
  std::set<std::string> aliases;
  for (const TensorState& tensor : tensors) {
    wanted.push_back(tensor.key);
    aliases.insert(tensor.aliases.begin(), tensor.aliases.end());
  }
  for (const auto& [name, key] : names.keys)
    if (!aliases.contains(name)) found.push_back(name);
  NameDifferences differences = compare_names(std::move(wanted), std::move(found));
  differences.missing.insert(differences.missing.end(), options.missing_objects.begin(),
                             options.missing_objects.end());
  std::vector<LoadItem> items;
  for (const TensorState& tensor : tensors) {
    const auto stored = names.keys.find(tensor.key);
    if (stored == names.keys.end()) continue;
    const TensorRecord& record = checkpoint.index.tensors.at(stored->second);
    const bool type_fits =
        record.dtype == tensor.dtype || (options.allow_dtype_cast && can_cast(record.dtype, tensor.dtype));
    if (record.shape != tensor.shape || !type_fits) {
      differences.mismatched.push_back({tensor.key, describe_tensor(tensor.dtype, tensor.shape),
                                        describe_tensor(record.dtype, record.shape)});
    }
    items.push_back({tensor, &record, names.row_map ? names.row_map(tensor.key) : RowMap()});
  }
  const std::string problem = explain_differences(checkpoint.folder.string(), differences);
  if (!problem.empty()) {
    const bool castable = std::ranges::any_of(items, [](const LoadItem& item) {
      return item.record->dtype != item.tensor.dtype && can_cast(item.record->dtype, item.tensor.dtype);
    });
    throw_incompatible("{}{}", problem, castable && !options.allow_dtype_cast ? "; " + options.remedy : "");
  }
  return items;
}

LoadReport load_tensors(const OpenCheckpoint& checkpoint, const std::vector<LoadItem>& items,
                        MemoryMover& mover, const LoadOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<ChunkRead> reads;
  for (const LoadItem& item : items) find_chunks(item, checkpoint, reads);
  // By file and offset: one pass over each file.
  std::ranges::stable_sort(reads, [](const ChunkRead& a, const ChunkRead& b) {
    return std::tie(a.chunk->where.file, a.chunk->where.offset) <
           std::tie(b.chunk->where.file, b.chunk->where.offset);
  });
  const auto another_file = [](const ChunkRead& a, const ChunkRead& b) {
    return a.chunk->where.file != b.chunk->where.file;
  };
  RowLoader rows(mover, options);
  for (auto first = reads.begin(); first != reads.end();) {
    auto last = std::ranges::adjacent_find(first, reads.end(), another_file);
    if (last != reads.end()) ++last;
    load_file(checkpoint, {first, last}, options, rows);
    failpoint("load.mid_data");
    first = last;
  }
  if (!rows.not_finite().empty())
    throw_data("{}: holds NaN or infinite numbers, in {}: name another checkpoint",
               checkpoint.folder.string(), rows.not_finite().text());
  failpoint("load.done");
  return {rows.bytes(), seconds_since(begin)};
}

std::map<std::string, Object> load_objects(const OpenCheckpoint& checkpoint,
                                           const std::function<bool(const std::string& key)>& wanted) {
  std::map<std::string, Object> objects;
  std::map<std::string, ShardReader> files;
  for (const auto& [key, record] : checkpoint.index.objects) {
    if (!wanted(key)) continue;
    const std::string& name = record.where.file;
    auto file = files.find(name);
    if (file == files.end())
      file = files.try_emplace(name, checkpoint.folder, name, checkpoint.record(name)).first;
    SliceSource entry(file->second, record.where.offset, record.where.length);
    objects.emplace(key, read_object_archive(entry));
  }
  return objects;
}

}  // namespace hyperion::checkpoint
