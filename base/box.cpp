#include "base/box.h"

#include <algorithm>

#include "base/error.h"

namespace hyperion {

Range chunk_of(int64_t extent, int64_t parts, int64_t index) {
  const int64_t largest = (extent + parts - 1) / parts;
  const int64_t begin = std::min(extent, index * largest);
  return {begin, std::min(extent, begin + largest) - begin};
}

int64_t Box::numel() const {
  if (std::ranges::count(shape, 0) > 0) return 0;  // also if the product of the others overflows
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

Box whole_box(std::vector<int64_t> shape) {
  const size_t dims = shape.size();
  return {std::vector<int64_t>(dims, 0), std::move(shape)};
}

Box box_of(const std::vector<int64_t>& shape, std::span<const Cut> cuts) {
  Box box = whole_box(shape);
  for (const auto& [dim, parts, index] : cuts) {
    const auto d = static_cast<size_t>(dim);
    if (dim < 0 || d >= shape.size() || parts < 1 || index < 0 || index >= parts)
      throw_bug("part {} of {} of dimension {} of a tensor of {} dimensions", index, parts, dim,
                shape.size());
    const auto [begin, count] = chunk_of(box.shape[d], parts, index);
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
  // The box spans dimensions from `inner` on completely: a run covers them and the range of the previous
  // one.
  size_t inner = shape.size();
  while (inner > 0 && box.shape[inner - 1] == shape[inner - 1]) --inner;
  const size_t outer = inner == 0 ? 0 : inner - 1;  // number of dimensions to iterate over
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
