#include "checkpoint/tools/content.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/printable.h"
#include "checkpoint/format/metadata_tiling.h"

namespace hyperion::checkpoint {
namespace {

constexpr size_t kOpenFiles = 64;  // each holds a block that was verified

// A rectangular part of a tensor.
struct Box {
  Dims offset, shape;
};

// The intersection of two boxes; without elements when they are disjoint.
Box intersect(const Box& a, const Dims& offset, const Dims& shape) {
  Box box = a;
  for (size_t d = 0; d < shape.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], offset[d]);
    const int64_t end = std::min(a.offset[d] + a.shape[d], offset[d] + shape[d]);
    box.offset[d] = begin;
    box.shape[d] = std::max<int64_t>(0, end - begin);
  }
  return box;
}

Dims subtract(Dims a, const Dims& b) {
  for (size_t d = 0; d < a.size(); ++d) a[d] -= b[d];
  return a;
}

// Copies a row-major tensor of part.shape to part.offset of a row-major one of shape `whole`.
void copy_into_box(const std::byte* from, const Box& part, std::byte* to, const Dims& whole, size_t element) {
  int64_t longest = 1;  // run that is contiguous in both
  for (size_t d = whole.size(); d-- > 0;) {
    longest *= part.shape[d];
    if (part.shape[d] != whole[d]) break;
  }
  each_box(part.shape, longest, [&](const Dims& offset, const Dims& run) {
    int64_t at = 0;
    for (size_t d = 0; d < whole.size(); ++d) at = at * whole[d] + part.offset[d] + offset[d];
    const size_t bytes = static_cast<size_t>(elements_of(run)) * element;
    std::memcpy(to + static_cast<size_t>(at) * element, from, bytes);
    from += bytes;
  });
}

// Bare bytes, described as the archive of a contiguous tensor.
TensorArchive archive_of_bare_bytes(Dtype dtype, const Dims& shape, uint64_t bytes) {
  TensorArchive archive;
  archive.dtype = dtype;
  archive.shape = archive.strides = shape;
  archive.data_bytes = bytes;
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    archive.strides[d] = stride;
    stride *= shape[d];
  }
  return archive;
}

}  // namespace

int64_t elements_of(const Dims& shape) {
  const std::optional<int64_t> count = element_count(shape);
  if (!count) throw_data("a tensor of shape [{}] has more elements than 2^63", fmt::join(shape, ", "));
  return *count;
}

void each_box(const Dims& whole, int64_t most, const std::function<void(const Dims&, const Dims&)>& take) {
  const size_t rank = whole.size();
  if (elements_of(whole) == 0) return;
  if (rank == 0) return take({}, {});
  // Every box spans the dimensions after `cut` completely and has extent 1 in those before it.
  size_t cut = rank - 1;
  int64_t inner = 1;
  while (cut > 0 && inner * whole[cut] <= most) inner *= whole[cut--];
  const int64_t step = std::max<int64_t>(1, most / inner);
  Dims offset(rank, 0), shape = whole;
  std::fill_n(shape.begin(), cut, 1);
  for (;;) {
    shape[cut] = std::min(step, whole[cut] - offset[cut]);
    take(offset, shape);
    offset[cut] += shape[cut];
    size_t d = cut;
    while (offset[d] == whole[d]) {
      if (d == 0) return;
      offset[d--] = 0;
      ++offset[d];
    }
  }
}

ShardReader& ContentReader::file(const std::string& name) {
  auto& reader = files_[name];
  if (!reader) {
    const bool bare_bytes = checkpoint_.index.layout == CheckpointIndex::Layout::kBareBytes;
    reader = std::make_unique<ShardReader>(checkpoint_.folder, name, checkpoint_.record(name),
                                           bare_bytes ? Links::kFollow : Links::kRefuse);
    opened_.push_back(name);
    if (opened_.size() > kOpenFiles) {
      files_.erase(opened_.front());
      opened_.erase(opened_.begin());
    }
  }
  return *reader;
}

const TensorArchive& ContentReader::archive_of(const std::string& key, const TensorRecord& record,
                                               const Chunk& chunk) {
  if (key != key_) archives_.clear();
  key_ = key;
  const auto known = archives_.find(&chunk);
  if (known != archives_.end()) return known->second;
  if (checkpoint_.index.layout == CheckpointIndex::Layout::kBareBytes)
    return archives_.emplace(&chunk, archive_of_bare_bytes(record.dtype, chunk.shape, chunk.where.length))
        .first->second;
  SliceSource entry(file(chunk.where.file), chunk.where.offset, chunk.where.length);
  TensorArchive archive = open_tensor_archive(entry, key, record, chunk);
  if (!checkpoint_.manifest) check_crc(entry, archive);
  return archives_.emplace(&chunk, std::move(archive)).first->second;
}

void ContentReader::read(const std::string& key, const Dims& offset, const Dims& shape, std::byte* out) {
  const TensorRecord& record = checkpoint_.index.tensors.at(key);
  const size_t element = size_of(record.dtype);
  int64_t missing = elements_of(shape);
  for (const Chunk& chunk : record.chunks) {
    const Box part = intersect({offset, shape}, chunk.offset, chunk.shape);
    if (elements_of(part.shape) == 0) continue;
    const TensorArchive& archive = archive_of(key, record, chunk);
    SliceSource entry(file(chunk.where.file), chunk.where.offset, chunk.where.length);
    const Dims inside = subtract(part.offset, chunk.offset);
    if (part.shape == shape) return read_box(entry, archive, inside, part.shape, out);
    part_.resize(static_cast<size_t>(elements_of(part.shape)) * element);
    read_box(entry, archive, inside, part.shape, part_.data());
    copy_into_box(part_.data(), {subtract(part.offset, offset), part.shape}, out, shape, element);
    missing -= elements_of(part.shape);
  }
  if (missing != 0)
    throw_data("{}: tensor {} is not filled by its pieces without gap or overlap",
               checkpoint_.folder.string(), printable(key));
}

void ContentReader::stream(const std::string& key, const Take& take) {
  const TensorRecord& record = checkpoint_.index.tensors.at(key);
  const size_t element = size_of(record.dtype);
  each_box(record.shape, static_cast<int64_t>(kContentPiece / element),
           [&](const Dims& offset, const Dims& shape) {
             piece_.resize(static_cast<size_t>(elements_of(shape)) * element);
             read(key, offset, shape, piece_.data());
             take(piece_.data(), piece_.size());
           });
}

std::vector<std::string> keys_in_file_order(const CheckpointIndex& index) {
  std::vector<std::string> keys;
  for (const auto& [key, record] : index.tensors) keys.push_back(key);
  const auto place_of = [&](const std::string& key) {
    const auto& chunks = index.tensors.at(key).chunks;
    return chunks.empty() ? std::tuple<std::string, uint64_t>()
                          : std::tuple(chunks.front().where.file, chunks.front().where.offset);
  };
  std::ranges::stable_sort(keys, {}, place_of);
  return keys;
}

}  // namespace hyperion::checkpoint
