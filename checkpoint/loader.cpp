#include "checkpoint/loader.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>

#include "base/clock.h"
#include "base/collective.h"
#include "base/error.h"
#include "base/failpoint.h"
#include "base/files.h"
#include "base/printable.h"
#include "checkpoint/cast.h"
#include "checkpoint/content_reader.h"
#include "checkpoint/finite.h"
#include "checkpoint/format/pickle/pickle_reader.h"
#include "checkpoint/format/safetensors/safetensors.h"
#include "checkpoint/names.h"
#include "checkpoint/storage/index_files.h"

namespace hyperion::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kPiece = uint64_t{64} << 20;  // bytes per conversion or copy to a device

// A chunk with elements of this rank's part.
struct ChunkRead {
  const LoadItem* item;
  const Chunk* chunk;
};

// The elements of this rank's part in the chunk.
Box common_box(const ChunkRead& read) {
  const std::optional<Box> both =
      intersection(read.item->tensor.box(), {read.chunk->offset, read.chunk->shape});
  if (!both) throw_bug("load: a chunk of {} without elements of this rank", read.item->tensor.key);
  return *both;
}

// The ranges that BoxLoader will read of an archive that we wrote: its head, then everything from the first
// to the last element; if the chunk is wider than this rank's part, the bytes between its columns are in
// the same blocks.
void add_ranges(const ChunkRead& read, std::vector<ByteRange>& ranges) {
  const auto& [where, dtype, shape] =
      std::tie(read.chunk->where, read.item->record->dtype, read.chunk->shape);
  if (read.item->row_map) return ranges.push_back({where.offset, where.length});
  const Box box = relative_to(read.chunk->offset, common_box(read));
  uint64_t first = 0, last = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    first = first * static_cast<uint64_t>(shape[d]) + static_cast<uint64_t>(box.offset[d]);
    last = last * static_cast<uint64_t>(shape[d]) + static_cast<uint64_t>(box.offset[d] + box.shape[d] - 1);
  }
  const uint64_t head = tensor_archive_head(dtype, shape).size();
  ranges.push_back({where.offset, head});
  ranges.push_back({where.offset + head + first * size_of(dtype), (last - first + 1) * size_of(dtype)});
}

// Copies elements of chunks into tensors of the state.
class BoxLoader {
 public:
  BoxLoader(MemoryMover& mover, const LoadOptions& options) : mover_(mover), options_(options) {}

  void load(const ChunkRead& read, ChunkReader& chunk) {
    if (read.item->row_map) return load_mapped(*read.item, chunk);
    each_piece(*read.item, common_box(read),
               [&](const Box& piece, std::byte* out) { chunk.read(piece, out); });
  }

  uint64_t bytes() const { return bytes_; }
  const NotFinite& not_finite() const { return not_finite_; }

 private:
  // Reads from the only chunk of a tensor.
  void load_mapped(const LoadItem& item, ChunkReader& chunk) {
    each_piece(item, item.tensor.box(), [&](Box piece, std::byte* out) {
      const int64_t first_row = piece.offset[0], rows = piece.shape[0];
      const uint64_t row_bytes = static_cast<uint64_t>(piece.numel() / rows) * size_of(item.record->dtype);
      read_mapped_rows(item.row_map, first_row, rows, row_bytes, out,
                       [&](int64_t first, int64_t count, std::byte* to) {
                         piece.offset[0] = first;
                         piece.shape[0] = count;
                         chunk.read(piece, to);
                       });
    });
  }

  // Calls fetch(piece, out) for pieces of `box`, some of its rows each, and copies the result, row-major
  // and in the stored type, to the tensor's memory. It is one piece if that is host memory of the same type
  // without other columns.
  template <typename Fetch>
  void each_piece(const LoadItem& item, const Box& box, const Fetch& fetch) {
    const TensorState& tensor = item.tensor;
    const Box local = tensor.box();
    const Dtype stored = item.record->dtype;
    const uint64_t from_size = size_of(stored), to_size = size_of(tensor.dtype);
    const int64_t rows = box.shape.empty() ? 1 : box.shape.front(), width = box.numel() / rows;
    const bool complete_rows =
        local.shape.empty() || std::equal(local.shape.begin() + 1, local.shape.end(), box.shape.begin() + 1);
    const bool in_place = complete_rows && !tensor.on_device;
    const bool direct = in_place && stored == tensor.dtype;
    const int64_t step =
        direct && !item.row_map
            ? rows
            : std::max<int64_t>(1, static_cast<int64_t>(kPiece / (static_cast<uint64_t>(width) * from_size)));
    for (int64_t row = 0; row < rows; row += step) {
      Box piece = box;
      if (!piece.shape.empty()) {
        piece.offset.front() += row;
        piece.shape.front() = std::min(step, rows - row);
      }
      const auto elements = static_cast<uint64_t>(piece.numel());
      const Box place = relative_to(local.offset, piece);
      std::byte* const to =
          in_place
              ? static_cast<std::byte*>(tensor.data) +
                    (place.offset.empty() ? 0 : static_cast<uint64_t>(place.offset.front() * width)) * to_size
              : nullptr;
      std::byte* out = direct ? to : buffer(fetched_, elements * from_size);
      fetch(piece, out);
      bytes_ += elements * from_size;
      filled_ += elements * to_size;
      if (stored != tensor.dtype) {
        std::byte* const converted = in_place ? to : buffer(converted_, elements * to_size);
        cast(stored, out, tensor.dtype, converted, elements);
        out = converted;
      }
      if (options_.verify_finite) scan(tensor, piece, out, elements * to_size);
      if (!in_place) {
        for_each_run(local.shape, place, [&](const Run& run) {
          mover_.from_host(tensor, static_cast<uint64_t>(run.in_tensor) * to_size,
                           out + static_cast<uint64_t>(run.in_box) * to_size,
                           static_cast<uint64_t>(run.count) * to_size);
        });
        mover_.finish();
      }
      if (options_.on_progress) options_.on_progress(filled_);
    }
  }

  // Names the matrix of a stack, as of experts: "layers.1.moe.experts.w1[5]".
  void scan(const TensorState& tensor, const Box& piece, const std::byte* data, uint64_t bytes) {
    if (piece.shape.size() != 3) {
      not_finite_.scan(tensor.key, tensor.dtype, data, bytes);
      return;
    }
    const auto matrices = static_cast<uint64_t>(piece.shape.front());
    for (uint64_t i = 0; i < matrices; ++i) {
      const uint64_t count = count_not_finite(tensor.dtype, data + i * (bytes / matrices), bytes / matrices);
      if (count > 0)
        not_finite_.add(fmt::format("{}[{}]", tensor.key, piece.offset.front() + static_cast<int64_t>(i)),
                        count);
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
  uint64_t bytes_ = 0;   // bytes read
  uint64_t filled_ = 0;  // bytes of the state filled
};

// Returns whether the chunk has elements of `box`. Every rank checks every chunk.
bool overlaps(const Chunk& chunk, const Box& box) {
  for (size_t d = 0; d < box.shape.size(); ++d)
    if (chunk.shape[d] == 0 || chunk.offset[d] >= box.offset[d] + box.shape[d] ||
        box.offset[d] >= chunk.offset[d] + chunk.shape[d])
      return false;
  return true;
}

// The chunks of the item that hold elements of this rank's part.
void find_chunks(const LoadItem& item, const OpenCheckpoint& checkpoint, std::vector<ChunkRead>& reads) {
  if (!item.tensor.placement.is_local) return;
  const Box wanted = item.tensor.box();
  if (wanted.numel() == 0) return;
  if (item.row_map && item.record->chunks.size() != 1)
    throw_incompatible("{}: tensor {} is in {} pieces: consolidate the safetensors files first",
                       checkpoint.folder.string(), item.tensor.key, item.record->chunks.size());
  for (const Chunk& chunk : item.record->chunks)
    if (item.row_map || overlaps(chunk, wanted)) reads.push_back({&item, &chunk});
}

// Performs `reads`, which belong to one file and are ordered by offset.
void load_file(const OpenCheckpoint& checkpoint, std::span<const ChunkRead> reads, const LoadOptions& options,
               BoxLoader& loader) {
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
    try {
      ChunkReader chunk(file, checkpoint, read.item->tensor.key, *read.item->record, *read.chunk, check_crcs);
      loader.load(read, chunk);
    } catch (const Error& error) {
      const std::string& key = read.item->tensor.key;
      const std::string what = error.what();
      if (error.code() != ExitCode::kBadData || what.find(key) != std::string::npos) throw;
      throw_data("{} (while tensor {} was read)", what, printable(key));
    }
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

std::vector<IndexFile> read_index(const OpenCheckpoint& checkpoint) {
  const fs::path& folder = checkpoint.folder;
  std::vector<IndexFile> files;
  uint64_t left = kMaxPickleBytes;
  const std::vector<std::string> names = find_index_files(folder);
  for (const std::string& name : names) {
    ShardReader file(folder, name, checkpoint.record(name));
    if (file.size() > left && names.size() == 1)
      throw_data("{}: the index has more than {} bytes, and none that is larger is read", file.name(),
                 kMaxPickleBytes);
    if (file.size() > left) {
      uint64_t sum = 0;
      for (const std::string& each : names) sum += ShardReader(folder, each, checkpoint.record(each)).size();
      throw_data(
          "{}: the index of this save, {} to {}, has {} bytes, and none of more than {} is read: each rank "
          "lists every tensor that it has a part of; load it with PyTorch on as many ranks as saved it, and "
          "save it again without use_collectives=False, which leaves one .metadata that lists each once",
          printable(folder), names.front(), names.back(), sum, kMaxPickleBytes);
    }
    left -= file.size();
    files.push_back({name, file.read_text(0, file.size())});
  }
  return files;
}

std::optional<IndexFiles> read_index_files(const fs::path& folder) {
  IndexFiles files;
  OpenCheckpoint checkpoint;  // supplies the records of the files
  checkpoint.folder = folder;
  if (name_exists(folder / kManifestFile)) {
    files.manifest = read_manifest_text(folder);
    checkpoint.manifest = manifest_from_json(*files.manifest, printable(folder / kManifestFile));
    check_sizes(folder, *checkpoint.manifest);
  }
  files.index = read_index(checkpoint);
  return files.index.empty() ? std::nullopt : std::optional(std::move(files));
}

namespace {

// Broadcasts rank 0's text in pieces, so that a long text in flight takes no second copy.
std::string broadcast_text(std::string text, Coordinator& group) {
  constexpr size_t kBroadcastPiece = size_t{16} << 20;
  const auto size = unpack<uint64_t>(group.broadcast(pack(uint64_t{text.size()})));
  if (group.rank() == 0) {
    for (size_t at = 0; at < size; at += kBroadcastPiece) group.broadcast(text.substr(at, kBroadcastPiece));
  } else {
    text.clear();
    text.reserve(size);
    while (text.size() < size) text += group.broadcast("");
  }
  return text;
}

}  // namespace

std::optional<IndexFiles> broadcast_index_files(std::optional<IndexFiles> files, Coordinator& group) {
  if (group.size() == 1) return files;
  const bool first = group.rank() == 0;
  const std::string packed = broadcast_text(first ? pack(files) : "", group);
  return first ? std::move(files) : unpack<std::optional<IndexFiles>>(packed);
}

OpenCheckpoint decode_index_files(const fs::path& folder, const IndexFiles& files) {
  failpoint("load.meta");
  OpenCheckpoint checkpoint;
  checkpoint.folder = folder;
  if (files.manifest)
    checkpoint.manifest = manifest_from_json(*files.manifest, printable(folder / kManifestFile));
  checkpoint.index = decode_metadata(folder, files.index);
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
    const auto replacement = names.records.find(tensor.key);
    const std::shared_ptr<const TensorRecord> found =
        replacement != names.records.end()
            ? replacement->second
            : std::shared_ptr<const TensorRecord>(std::shared_ptr<void>(),
                                                  &checkpoint.index.tensors.at(stored->second));
    const TensorRecord& record = *found;
    const bool type_fits =
        record.dtype == tensor.dtype || (options.allow_dtype_cast && can_cast(record.dtype, tensor.dtype));
    if (record.shape != tensor.shape || !type_fits) {
      differences.mismatched.push_back({tensor.key, describe_tensor(tensor.dtype, tensor.shape),
                                        describe_tensor(record.dtype, record.shape)});
    }
    LoadItem& item = items.emplace_back(
        LoadItem{tensor, found, names.row_map ? names.row_map(tensor.key) : RowMap(), stored->second});
    for (const std::string& alias : tensor.aliases) {
      const auto other = names.keys.find(alias);
      if (other == names.keys.end()) continue;
      const TensorRecord& there = checkpoint.index.tensors.at(other->second);
      if (there.shape != record.shape || there.dtype != record.dtype)
        differences.unexpected.push_back(alias);
      else
        item.aliases.push_back({other->second, &there});
    }
  }
  const std::string problem =
      explain_differences(checkpoint.folder.string(), differences, options.subject,
                          options.advice ? options.advice(differences) : std::string(kRenameAdvice));
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
  for (const LoadItem& item : items) {
    if (item.tensor.placement.is_local) require_equal_aliases(checkpoint, item, item.tensor.box(), options);
    find_chunks(item, checkpoint, reads);
  }
  // Sorted by file and offset, for one pass over each file.
  std::ranges::stable_sort(reads, [](const ChunkRead& a, const ChunkRead& b) {
    return std::tie(a.chunk->where.file, a.chunk->where.offset) <
           std::tie(b.chunk->where.file, b.chunk->where.offset);
  });
  const auto another_file = [](const ChunkRead& a, const ChunkRead& b) {
    return a.chunk->where.file != b.chunk->where.file;
  };
  BoxLoader loader(mover, options);
  for (auto first = reads.begin(); first != reads.end();) {
    auto last = std::ranges::adjacent_find(first, reads.end(), another_file);
    if (last != reads.end()) ++last;
    load_file(checkpoint, {first, last}, options, loader);
    failpoint("load.mid_data");
    first = last;
  }
  if (!loader.not_finite().empty())
    throw_data("{}: holds NaN or infinite numbers, in {}: name another checkpoint",
               checkpoint.folder.string(), loader.not_finite().text());
  failpoint("load.done");
  return {loader.bytes(), seconds_since(begin)};
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
