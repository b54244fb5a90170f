// Boxes are rectangular parts of tensors: how a tensor is split between ranks, and which box a rank holds.
// Pure arithmetic; parallel/ shards parameters with it, models/ fills boxes with initial values, and
// checkpoint/ describes and stores them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace hyperion {

// Consecutive indices of a dimension.
struct Range {
  int64_t begin = 0, count = 0;
  int64_t end() const { return begin + count; }
  bool operator==(const Range&) const = default;
};

// Returns part `index` of `extent` indices split into `parts` parts by torch.chunk's rule: every part has
// ceil(extent / parts) indices except the last ones, which may be short or empty.
Range chunk_of(int64_t extent, int64_t parts, int64_t index);

// A Cut keeps part `index` of `parts` of a tensor along dimension `dim`, by chunk_of.
struct Cut {
  int dim = 0;
  int64_t parts = 1, index = 0;
  bool operator==(const Cut&) const = default;
};

// The elements of a tensor with indices [offset[d], offset[d] + shape[d]) in every dimension d.
struct Box {
  std::vector<int64_t> offset, shape;

  int64_t numel() const;  // 1 without dimensions
  bool operator==(const Box&) const = default;
};

Box whole_box(std::vector<int64_t> shape);

// Returns the box that remains of a tensor of `shape` after `cuts`, each applied to the result of the
// previous one; it may be empty. Throws Error(kBug) if a cut's dimension does not exist.
Box box_of(const std::vector<int64_t>& shape, std::span<const Cut> cuts);

// Returns nullopt if the boxes have no element in common.
std::optional<Box> intersection(const Box& a, const Box& b);

// A run of elements that are consecutive in a box and in its tensor, row-major.
struct Run {
  int64_t in_tensor = 0, in_box = 0;  // index of the first element in each
  int64_t count = 0;
};
// Calls `visit` for the longest runs of `box`, a part of a tensor of `shape`, in row-major order.
void for_each_run(const std::vector<int64_t>& shape, const Box& box,
                  const std::function<void(const Run&)>& visit);

}  // namespace hyperion
