#include "base/box.h"

#include <algorithm>

#include "base/error.h"

namespace hyperion {
namespace {

// Rows [rows.begin, rows.end()) of box `whole` where its dimensions dim and dim + 1 count as one: the end of
// a first matrix, whole matrices, the begin of a last one.
std::vector<Box> boxes_of_flat_rows(const Box& whole, size_t dim, Range rows) {
  const int64_t height = whole.shape[dim + 1];
  std::vector<Box> boxes;
  const auto add = [&](Range outer, Range inner) {
    Box box = whole;
    box.offset[dim] += outer.begin;
    box.shape[dim] = outer.count;
    box.offset[dim + 1] += inner.begin;
    box.shape[dim + 1] = inner.count;
    if (box.numel() > 0) boxes.push_back(std::move(box));
  };
  for (int64_t row = rows.begin; row < rows.end();) {
    const int64_t matrix = row / height, inside = row % height;
    const int64_t left = rows.end() - row;
    const bool whole_matrices = inside == 0 && left >= height;
    const Range outer = {matrix, whole_matrices ? left / height : 1};
    const Range inner = {inside, whole_matrices ? height : std::min(height - inside, left)};
    add(outer, inner);
    row += outer.count * inner.count;
  }
  return boxes;
}

void require_cut(const Cut& cut, const std::vector<int64_t>& shape) {
  const auto& [dim, span, parts, index] = cut;
  const auto d = static_cast<size_t>(dim);
  if (dim < 0 || d + static_cast<size_t>(span) > shape.size() || parts < 1 || index < 0 || index >= parts)
    throw_bug("part {} of {} of dimension {} (span {}) of a tensor of {} dimensions", index, parts, dim, span,
              shape.size());
}

}  // namespace

Range chunk_of(int64_t extent, int64_t parts, int64_t index) {
  const int64_t largest = (extent + parts - 1) / parts;
  const int64_t begin = std::min(extent, index * largest);
  return {begin, std::min(extent, begin + largest) - begin};
}

int64_t Box::numel() const {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

Box whole_box(std::vector<int64_t> shape) {
  const size_t dims = shape.size();
  return {std::vector<int64_t>(dims, 0), std::move(shape)};
}

std::vector<Box> boxes_of(const std::vector<int64_t>& shape, std::span<const Cut> cuts) {
  if (cuts.empty() || cuts.back().span == 1) return {box_of(shape, cuts)};
  require_cut(cuts.back(), shape);
  const auto& [dim, span, parts, index] = cuts.back();
  const auto d = static_cast<size_t>(dim);
  const Box box = box_of(shape, cuts.first(cuts.size() - 1));
  return boxes_of_flat_rows(box, d, chunk_of(box.shape[d] * box.shape[d + 1], parts, index));
}

Box box_of(const std::vector<int64_t>& shape, std::span<const Cut> cuts) {
  Box box = whole_box(shape);
  for (const Cut& cut : cuts) {
    require_cut(cut, shape);
    if (cut.span != 1) throw_bug("one box was asked for, of a cut of two dimensions");
    const auto d = static_cast<size_t>(cut.dim);
    const auto [begin, count] = chunk_of(box.shape[d], cut.parts, cut.index);
    box.offset[d] += begin;
    box.shape[d] = count;
  }
  return box;
}

std::optional<Box> intersection(const Box& a, const Box& b) {
  Box both = a;
  for (size_t d = 0; d < a.shape.size(); ++d) {
    both.offset[d] = std::max(a.offset[d], b.offset[d]);
    both.shape[d] = std::min(a.offset[d] + a.shape[d], b.offset[d] + b.shape[d]) - both.offset[d];
    if (both.shape[d] <= 0) return std::nullopt;
  }
  return both;
}

void for_each_run(const std::vector<int64_t>& shape, const Box& box,
                  const std::function<void(const Run&)>& visit) {
  if (box.numel() == 0) return;
  // Dimensions from `inner` on are whole: a run spans them and the range of the one before.
  size_t inner = shape.size();
  while (inner > 0 && box.shape[inner - 1] == shape[inner - 1]) --inner;
  const size_t outer = inner == 0 ? 0 : inner - 1;  // dimensions that are iterated over
  int64_t count = 1;
  for (size_t d = outer; d < shape.size(); ++d) count *= box.shape[d];
  std::vector<int64_t> index(box.offset);
  for (int64_t in_box = 0;; in_box += count) {
    int64_t in_tensor = 0;
    for (size_t d = 0; d < shape.size(); ++d) in_tensor = in_tensor * shape[d] + index[d];
    visit({in_tensor, in_box, count});
    size_t d = outer;
    while (d > 0 && ++index[d - 1] == box.offset[d - 1] + box.shape[d - 1]) {
      index[d - 1] = box.offset[d - 1];
      --d;
    }
    if (d == 0) return;
  }
}

}  // namespace hyperion
