#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "checkpoint/loader.h"

namespace hyperion::checkpoint {
namespace {

// Decodes float8_e4m3fn: one sign bit, four exponent bits with bias 7, three fraction bits.
float float8_e4m3fn(std::byte bits) {
  const int exponent = static_cast<int>(bits >> 3 & std::byte{15});
  const float fraction = static_cast<float>(bits & std::byte{7});
  const float size = (bits & std::byte{127}) == std::byte{127} ? std::numeric_limits<float>::quiet_NaN()
                     : exponent == 0                           ? std::ldexp(fraction, -9)
                                                               : std::ldexp(8 + fraction, exponent - 10);
  return (bits & std::byte{128}) == std::byte{0} ? size : -size;
}

const std::array<float, 256>& float8_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> all{};
    for (size_t bits = 0; bits < all.size(); ++bits) all[bits] = float8_e4m3fn(static_cast<std::byte>(bits));
    return all;
  }();
  return values;
}

}  // namespace

ChunkReader::ChunkReader(ShardReader& file, const OpenCheckpoint& checkpoint, const std::string& key,
                         const TensorRecord& record, const Chunk& chunk, bool check_crcs)
    : chunk_(chunk), entry_(file, chunk.where.offset, chunk.where.length) {
  const bool bare = checkpoint.index.layout == CheckpointIndex::Layout::kBareBytes;
  if (const ForeignForm* form = chunk.form.get()) {
    const bool scaled = !form->scales.file.empty();
    archive_ = row_major_archive(scaled ? Dtype::kFloat8E4M3FN : record.dtype, chunk.shape, 0);
    archive_.first = form->first;
    if (!form->strides.empty()) archive_.strides = form->strides;
    if (!scaled) return;
    const Span& where = form->scales;
    ShardReader scales(checkpoint.folder, where.file, checkpoint.record(where.file), Links::kFollow);
    scales_.resize(where.length / sizeof(float));
    scales.read(where.offset, scales_.data(), where.length);
    return;
  }
  // The layout of our own archives is known; all others are parsed.
  const std::string head = bare ? "" : tensor_archive_head(record.dtype, chunk.shape);
  if (bare || (!check_crcs && entry_.size() == tensor_archive_bytes(record.dtype, chunk.shape) &&
               entry_.read_text(0, head.size()) == head)) {
    archive_ = row_major_archive(record.dtype, chunk.shape, head.size());
    return;
  }
  archive_ = open_tensor_archive(entry_, key, record, chunk);
  if (check_crcs) check_crc(entry_, archive_.data);
}

void ChunkReader::read(const Box& box, std::byte* out) {
  const Box in_chunk = relative_to(chunk_.offset, box);
  if (scales_.empty()) return read_box(entry_, archive_, in_chunk, out);
  read_scaled(in_chunk, reinterpret_cast<float*>(out));
}

void ChunkReader::read_scaled(const Box& in_chunk, float* out) {
  quantized_.resize(static_cast<size_t>(in_chunk.numel()));
  read_box(entry_, archive_, in_chunk, quantized_.data());
  const std::array<float, 256>& values = float8_values();
  const int64_t block = chunk_.form->block;
  const size_t last = in_chunk.shape.size() - 1;
  const int64_t columns = in_chunk.shape[last], blocks = (chunk_.shape[last] + block - 1) / block;
  const int64_t rows = in_chunk.numel() / std::max<int64_t>(columns, 1);
  for (int64_t row = 0; row < rows; ++row) {  // rows of one matrix
    const float* scales = scales_.data() + (in_chunk.offset[last - 1] + row) / block * blocks;
    const std::byte* from = quantized_.data() + row * columns;
    for (int64_t column = 0; column < columns; ++column)
      out[row * columns + column] =
          values[static_cast<size_t>(from[column])] * scales[(in_chunk.offset[last] + column) / block];
  }
}

}  // namespace hyperion::checkpoint
