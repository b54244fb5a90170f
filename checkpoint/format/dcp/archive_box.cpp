#include <algorithm>
#include <vector>

#include "base/error.h"
#include "checkpoint/format/dcp/archive.h"

namespace hyperion::checkpoint {
namespace {

constexpr int64_t kMostSpan = 16 << 20;   // bytes held to gather strided elements from
constexpr int64_t kSmallSpan = 64 << 10;  // bytes for which one more read is not worth it

// A box of a strided tensor on its way to row-major memory.
struct Box {
  int64_t first = 0;     // element of the record
  Dims shape, from, to;  // strides in elements, in the record and in memory
  std::byte* out = nullptr;
};

class BoxReader {
 public:
  BoxReader(ByteSource& entry, const TensorArchive& archive)
      : entry_(entry), archive_(archive), element_(static_cast<int64_t>(size_of(archive.dtype))) {}

  // Halves the box along its longest stride until a part is contiguous on both sides, or so dense in the file
  // that reading all between its first and last element is cheaper than reading each run.
  void read(const Box& box) {
    const int64_t bytes = element_ * count(box);
    if (is_contiguous(box)) return fetch(box.first, bytes, box.out);
    const int64_t span = element_ * (1 + last_of(box));
    if (span <= kMostSpan && (span <= kSmallSpan || span / 4 <= bytes)) {
      buffer_.resize(static_cast<size_t>(span));
      fetch(box.first, span, buffer_.data());
      return gather(box, 0, buffer_.data(), box.out);
    }
    const size_t dim = longest_stride(box);
    Box low = box, high = box;
    low.shape[dim] = box.shape[dim] / 2;
    high.shape[dim] -= low.shape[dim];
    high.first += low.shape[dim] * box.from[dim];
    high.out += low.shape[dim] * box.to[dim] * element_;
    read(low);
    read(high);
  }

 private:
  static int64_t count(const Box& box) {
    int64_t count = 1;
    for (const int64_t extent : box.shape) count *= extent;
    return count;
  }
  static int64_t last_of(const Box& box) {
    int64_t last = 0;
    for (size_t dim = 0; dim < box.shape.size(); ++dim) last += (box.shape[dim] - 1) * box.from[dim];
    return last;
  }
  static bool is_contiguous(const Box& box) {
    int64_t expected = 1;
    for (size_t dim = box.shape.size(); dim-- > 0;) {
      if (box.shape[dim] == 1) continue;
      if (box.from[dim] != expected || box.to[dim] != expected) return false;
      expected *= box.shape[dim];
    }
    return true;
  }
  static size_t longest_stride(const Box& box) {
    size_t best = 0;
    for (size_t dim = 1; dim < box.shape.size(); ++dim)
      if (box.shape[best] == 1 || (box.shape[dim] > 1 && box.from[dim] > box.from[best])) best = dim;
    return best;
  }
  void fetch(int64_t first, int64_t bytes, void* out) {
    entry_.read(archive_.data_offset + static_cast<uint64_t>(first * element_), out,
                static_cast<uint64_t>(bytes));
  }
  void gather(const Box& box, size_t dim, const std::byte* from, std::byte* to) const {
    if (dim == box.shape.size()) {
      std::memcpy(to, from, static_cast<size_t>(element_));
      return;
    }
    const bool run = dim + 1 == box.shape.size() && box.from[dim] == 1 && box.to[dim] == 1;
    if (run) {
      std::memcpy(to, from, static_cast<size_t>(element_ * box.shape[dim]));
      return;
    }
    for (int64_t i = 0; i < box.shape[dim]; ++i)
      gather(box, dim + 1, from + i * box.from[dim] * element_, to + i * box.to[dim] * element_);
  }

  ByteSource& entry_;
  const TensorArchive& archive_;
  int64_t element_;
  std::vector<std::byte> buffer_;
};

}  // namespace

void read_box(ByteSource& entry, const TensorArchive& archive, const Dims& offset, const Dims& shape,
              void* out) {
  const size_t rank = archive.shape.size();
  if (offset.size() != rank || shape.size() != rank)
    throw_bug("a box of another rank than the tensor's is wanted");
  Box box{archive.first, shape, archive.strides, Dims(rank), static_cast<std::byte*>(out)};
  int64_t stride = 1;
  for (size_t dim = rank; dim-- > 0;) {
    if (offset[dim] < 0 || shape[dim] < 0 || offset[dim] > archive.shape[dim] ||
        shape[dim] > archive.shape[dim] - offset[dim])
      throw_bug("a box outside the tensor is wanted");
    if (shape[dim] == 0) return;
    box.first += offset[dim] * archive.strides[dim];
    box.to[dim] = stride;
    stride *= shape[dim];
  }
  BoxReader(entry, archive).read(box);
}

void read_rows(ByteSource& entry, const TensorArchive& archive, int64_t first_row, int64_t rows, void* out) {
  if (archive.shape.empty()) throw_bug("rows of a tensor without dimensions are wanted");
  Dims offset(archive.shape.size(), 0), shape = archive.shape;
  offset[0] = first_row;
  shape[0] = rows;
  read_box(entry, archive, offset, shape, out);
}

}  // namespace hyperion::checkpoint
