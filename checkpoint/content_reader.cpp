#include "checkpoint/content_reader.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/printable.h"

namespace hyperion::checkpoint {
namespace {

constexpr size_t kOpenFiles = 64;  // each holds a verified block

}  // namespace

void each_box(const Dims& shape, int64_t max, const std::function<void(const Box&)>& take) {
  Box box = whole_box(shape);
  if (box.numel() == 0) return;
  if (shape.empty()) return take(box);
  // Every box spans the dimensions after `cut` completely and has extent 1 in those before it.
  size_t cut = shape.size() - 1;
  int64_t inner = 1;
  while (cut > 0 && inner * shape[cut] <= max) inner *= shape[cut--];
  const int64_t step = std::max<int64_t>(1, max / inner);
  std::fill_n(box.shape.begin(), cut, 1);
  for (;;) {
    box.shape[cut] = std::min(step, shape[cut] - box.offset[cut]);
    take(box);
    box.offset[cut] += box.shape[cut];
    size_t d = cut;
    while (box.offset[d] == shape[d]) {
      if (d == 0) return;
      box.offset[d--] = 0;
      ++box.offset[d];
    }
  }
}

ShardReader& ContentReader::file(const std::string& name) {
  if (const auto known = files_.find(name); known != files_.end()) return known->second;
  if (files_.size() == kOpenFiles) {
    chunks_.clear();
    files_.clear();
  }
  const bool bare = checkpoint_.index.layout == CheckpointIndex::Layout::kBareBytes;
  return files_
      .try_emplace(name, checkpoint_.folder, name, checkpoint_.record(name),
                   bare ? Links::kFollow : Links::kRefuse)
      .first->second;
}

ChunkReader& ContentReader::chunk(const std::string& key, const TensorRecord& record, const Chunk& chunk) {
  if (key != key_) chunks_.clear();
  key_ = key;
  if (const auto known = chunks_.find(&chunk); known != chunks_.end()) return known->second;
  ShardReader& in = file(chunk.where.file);
  return chunks_
      .try_emplace(&chunk, in, checkpoint_, key, record, chunk, /*check_crcs=*/!checkpoint_.manifest)
      .first->second;
}

void ContentReader::read(const std::string& key, const Box& wanted, std::byte* out) {
  read(key, checkpoint_.index.tensors.at(key), wanted, out);
}

void ContentReader::read(const std::string& key, const TensorRecord& record, const Box& wanted,
                         std::byte* out) {
  const size_t element = size_of(record.dtype);
  int64_t missing = wanted.numel();
  for (const Chunk& chunk : record.chunks) {
    const std::optional<Box> part = intersection(wanted, {chunk.offset, chunk.shape});
    if (!part) continue;
    ChunkReader& reader = this->chunk(key, record, chunk);
    if (part->shape == wanted.shape) return reader.read(*part, out);
    part_.resize(bytes_of(record.dtype, part->shape));
    reader.read(*part, part_.data());
    for_each_run(wanted.shape, relative_to(wanted.offset, *part), [&](const Run& run) {
      std::memcpy(out + static_cast<size_t>(run.in_tensor) * element,
                  part_.data() + static_cast<size_t>(run.in_box) * element,
                  static_cast<size_t>(run.count) * element);
    });
    missing -= part->numel();
  }
  if (missing != 0)
    throw_data("{}: tensor {} is not filled by its pieces without gap or overlap",
               checkpoint_.folder.string(), printable(key));
}

void ContentReader::stream(const std::string& key, int64_t max, const Take& take) {
  const TensorRecord& record = checkpoint_.index.tensors.at(key);
  each_box(record.shape, max, [&](const Box& box) {
    piece_.resize(bytes_of(record.dtype, box.shape));
    read(key, box, piece_.data());
    take(box, piece_.data());
  });
}

bool equal_in_box(const OpenCheckpoint& checkpoint, const std::string& a, const TensorRecord& record_a,
                  const std::string& b, const TensorRecord& record_b, const Box& box) {
  const size_t element = size_of(record_a.dtype);
  ContentReader from_a(checkpoint), from_b(checkpoint);
  std::vector<std::byte> bytes_a, bytes_b;
  bool equal = true;
  each_box(box.shape, static_cast<int64_t>(kContentPiece / element), [&](Box piece) {
    if (!equal) return;
    for (size_t d = 0; d < piece.offset.size(); ++d) piece.offset[d] += box.offset[d];
    bytes_a.resize(static_cast<size_t>(piece.numel()) * element);
    bytes_b.resize(bytes_a.size());
    from_a.read(a, record_a, piece, bytes_a.data());
    from_b.read(b, record_b, piece, bytes_b.data());
    equal = bytes_a == bytes_b;
  });
  return equal;
}

void require_equal_aliases(const OpenCheckpoint& checkpoint, const LoadItem& item, const Box& box,
                           const LoadOptions& options) {
  for (const auto& [key, record] : item.aliases)
    if (!equal_in_box(checkpoint, item.key, *item.record, key, *record, box))
      throw_incompatible(
          "{} does not fit {}: unexpected: {} holds other numbers than {}, and the model has one tensor for "
          "both (its head is tied){}",
          checkpoint.folder.string(), options.subject, printable(key), printable(item.key),
          options.untie.empty() ? "" : "; " + options.untie);
}

}  // namespace hyperion::checkpoint
