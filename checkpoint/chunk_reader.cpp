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

constexpr int kExponentBias = 127;                                           // of the scales of MXFP4
constexpr std::array<float, 8> kFloat4Sizes = {0, 0.5, 1, 1.5, 2, 3, 4, 6};  // the fourth bit is the sign

// The numbers of both codes of each byte, the lower bits first.
const std::array<std::array<float, 2>, 256>& float4_pairs() {
  static const std::array<std::array<float, 2>, 256> pairs = [] {
    const auto value = [](size_t code) { return code < 8 ? kFloat4Sizes[code] : -kFloat4Sizes[code - 8]; };
    std::array<std::array<float, 2>, 256> all{};
    for (size_t bits = 0; bits < all.size(); ++bits) all[bits] = {value(bits % 16), value(bits / 16)};
    return all;
  }();
  return pairs;
}

// Returns the box of a tensor in which the last dimension counts groups of `size` elements.
Box box_of_groups(Box box, int64_t size) {
  const int64_t first = box.offset.back() / size,
                end = (box.offset.back() + box.shape.back() + size - 1) / size;
  box.offset.back() = first;
  box.shape.back() = end - first;
  return box;
}

}  // namespace

ChunkReader::ChunkReader(ShardReader& file, const OpenCheckpoint& checkpoint, const std::string& key,
                         const TensorRecord& record, const Chunk& chunk, bool check_crcs)
    : chunk_(chunk), entry_(file, chunk.where.offset, chunk.where.length) {
  const bool bare = checkpoint.index.layout == CheckpointIndex::Layout::kBareBytes;
  if (const ForeignForm* form = chunk.form.get()) {
    const bool scaled = !form->scales.file.empty();
    if (scaled && form->encoding == ForeignForm::Encoding::kFloat4) {
      const auto groups_of = [&](int64_t size) {
        Dims shape = chunk.shape;
        shape.back() /= size;
        return row_major_archive(Dtype::kUInt8, shape, 0);
      };
      archive_ = groups_of(2);
      scale_archive_ = groups_of(form->block);
      const Span& where = form->scales;
      scale_file_ = std::make_unique<ShardReader>(checkpoint.folder, where.file,
                                                  checkpoint.record(where.file), Links::kFollow);
      scale_entry_.emplace(*scale_file_, where.offset, where.length);
      return;
    }
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
  auto* const numbers = reinterpret_cast<float*>(out);
  if (scale_entry_) return read_float4(in_chunk, numbers);
  if (scales_.empty()) return read_box(entry_, archive_, in_chunk, out);
  read_float8(in_chunk, numbers);
}

void ChunkReader::read_float4(Box in_chunk, float* out) {
  const int64_t block = chunk_.form->block, columns = in_chunk.shape.back(), first = in_chunk.offset.back();
  const Box bytes = box_of_groups(in_chunk, 2), scales = box_of_groups(in_chunk, block);
  quantized_.resize(static_cast<size_t>(bytes.numel()));
  exponents_.resize(static_cast<size_t>(scales.numel()));
  read_box(entry_, archive_, bytes, quantized_.data());
  read_box(*scale_entry_, scale_archive_, scales, exponents_.data());
  const auto& pairs = float4_pairs();
  const int64_t rows = in_chunk.numel() / std::max<int64_t>(columns, 1);
  for (int64_t row = 0; row < rows; ++row) {
    const std::byte *codes = quantized_.data() + row * bytes.shape.back(),
                    *exponents = exponents_.data() + row * scales.shape.back();
    for (int64_t column = first; column < first + columns;) {
      const int64_t end = std::min(first + columns, (column / block + 1) * block);
      // 2^128, of the byte 255, is infinite, and zero times it NaN, as in transformers.
      const float factor = std::ldexp(
          1.0F, static_cast<int>(exponents[column / block - scales.offset.back()]) - kExponentBias);
      for (; column < end; ++column) {
        const auto code = static_cast<size_t>(codes[column / 2 - bytes.offset.back()]);
        *out++ = pairs[code][static_cast<size_t>(column % 2)] * factor;
      }
    }
  }
}

void ChunkReader::read_float8(const Box& in_chunk, float* out) {
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
