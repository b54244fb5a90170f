#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "checkpoint/format/dcp/archive.h"
#include "checkpoint/format/metadata_tiling.h"

namespace hyperion::checkpoint {
namespace {

constexpr int64_t kMaxSpan = 16 << 20;       // maximum bytes held to gather runs from
constexpr int64_t kPageBytes = 4 << 10;      // minimum read of a disk or a file server
constexpr int64_t kShortRun = 1 << 10;       // bytes: runs shorter than this are gathered from
constexpr int64_t kGatheredSpan = 64 << 10;  // spans of this many bytes, whatever the gaps

// Copies a box of a strided tensor to row-major memory.
struct StridedBox {
  int64_t first = 0;     // index in the record of the first element
  Dims shape, from, to;  // strides in elements, in the record and in memory
  std::byte* out = nullptr;
};

class StridedReader {
 public:
  StridedReader(ByteSource& entry, const TensorArchive& archive)
      : entry_(entry), archive_(archive), element_(static_cast<int64_t>(size_of(archive.dtype))) {}

  // Halves the box along its longest stride until a part is contiguous on both sides, or so dense in the
  // file that its entire span is read, see read_box().
  void read(const StridedBox& box, bool announced = false) {
    if (is_contiguous(box)) return fetch(box.first, element_ * count(box), box.out);
    const int64_t span = element_ * (1 + last_of(box));
    if (span <= kMaxSpan && is_dense(box, span)) {
      buffer_.resize(static_cast<size_t>(span));
      fetch(box.first, span, buffer_.data());
      return gather(box, 0, buffer_.data(), box.out);
    }
    // Announces many runs, so that a disk or a file server fetches them concurrently.
    if (!announced && element_ * count(box) <= kMaxSpan) announced = announce(box);
    const size_t dim = longest_stride(box);
    StridedBox low = box, high = box;
    low.shape[dim] = box.shape[dim] / 2;
    high.shape[dim] -= low.shape[dim];
    high.first += low.shape[dim] * box.from[dim];
    high.out += low.shape[dim] * box.to[dim] * element_;
    read(low, announced);
    read(high, announced);
  }

 private:
  static int64_t count(const StridedBox& box) {
    int64_t count = 1;
    for (const int64_t extent : box.shape) count *= extent;
    return count;
  }
  static int64_t last_of(const StridedBox& box) {
    int64_t last = 0;
    for (size_t dim = 0; dim < box.shape.size(); ++dim) last += (box.shape[dim] - 1) * box.from[dim];
    return last;
  }
  static bool is_contiguous(const StridedBox& box) {
    int64_t expected = 1;
    for (size_t dim = box.shape.size(); dim-- > 0;) {
      if (box.shape[dim] == 1) continue;
      if (box.from[dim] != expected || box.to[dim] != expected) return false;
      expected *= box.shape[dim];
    }
    return true;
  }
  // Returns whether the span from its first to its last element is read in one piece.
  bool is_dense(const StridedBox& box, int64_t span) const {
    std::vector<size_t> dims;  // by stride
    for (size_t dim = 0; dim < box.shape.size(); ++dim)
      if (box.shape[dim] > 1) dims.push_back(dim);
    std::ranges::sort(dims, {}, [&](size_t dim) { return box.from[dim]; });
    // In elements: the span of the dimensions so far, the first run, the widest gap.
    int64_t reach = 1, run = 0, gap = 0;
    for (const size_t dim : dims) {
      if (box.from[dim] > reach && run == 0) run = reach;
      gap = std::max(gap, box.from[dim] - reach);
      reach += (box.shape[dim] - 1) * box.from[dim];
    }
    const bool short_runs = run > 0 && element_ * run < kShortRun;
    return element_ * gap < kPageBytes || (short_runs && span <= kGatheredSpan);
  }
  static size_t longest_stride(const StridedBox& box) {
    size_t best = 0;
    for (size_t dim = 1; dim < box.shape.size(); ++dim)
      if (box.shape[best] == 1 || (box.shape[dim] > 1 && box.from[dim] > box.from[best])) best = dim;
    return best;
  }
  // Announces the runs of a box that is contiguous in its last dimension to the source. Returns whether it
  // is.
  bool announce(const StridedBox& box) {
    if (box.from.back() != 1) return false;
    const auto run = static_cast<uint64_t>(element_ * box.shape.back());
    const auto visit = [&](const auto& self, size_t dim, int64_t first) -> void {
      if (dim + 1 == box.shape.size())
        return entry_.will_read(archive_.data.data_offset + static_cast<uint64_t>(first * element_), run);
      for (int64_t i = 0; i < box.shape[dim]; ++i) self(self, dim + 1, first + i * box.from[dim]);
    };
    visit(visit, 0, box.first);
    return true;
  }
  void fetch(int64_t first, int64_t bytes, void* out) {
    entry_.read(archive_.data.data_offset + static_cast<uint64_t>(first * element_), out,
                static_cast<uint64_t>(bytes));
  }
  void gather(const StridedBox& box, size_t dim, const std::byte* from, std::byte* to) const {
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

TensorArchive row_major_archive(Dtype dtype, const Dims& shape, uint64_t data_offset) {
  const auto elements = static_cast<uint64_t>(element_count(shape).value());
  const ZipRecord data{"data/0", data_offset, elements * size_of(dtype), std::nullopt};
  return {dtype, shape, row_major_strides(shape), 0, data};
}

void read_box(ByteSource& entry, const TensorArchive& archive, const Box& wanted, void* out) {
  const auto& [offset, shape] = wanted;
  const size_t rank = archive.shape.size();
  if (offset.size() != rank || shape.size() != rank)
    throw_bug("a box of another rank than the tensor's is wanted");
  StridedBox box{archive.first, shape, archive.strides, Dims(rank), static_cast<std::byte*>(out)};
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
  StridedReader(entry, archive).read(box);
}

}  // namespace hyperion::checkpoint
