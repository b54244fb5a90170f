// Rectangular parts of tensors: how ranks cut a tensor between them, and which box of it a rank holds. Pure
// arithmetic; parallel/ cuts parameters with it, models/ fills boxes with initial values, and checkpoint/
// describes and stores them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace hyperion {

// `count` consecutive indices of a dimension.
struct Range {
  int64_t begin = 0, count = 0;
  int64_t end() const { return begin + count; }
  bool operator==(const Range&) const = default;
};

// Part `index` of `extent` indices in `parts` parts by torch.chunk's rule: every part has
// ceil(extent / parts) indices but the last ones, which may be short or empty.
Range chunk_of(int64_t extent, int64_t parts, int64_t index);

// Part `index` of `parts` of a tensor along dimension `dim`, by chunk_of.
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

// What is left of a tensor of `shape` after `cuts`, each applied to what the one before it left; possibly no
// element. Throws Error(kBug) for a cut of a dimension that is not there.
Box box_of(const std::vector<int64_t>& shape, std::span<const Cut> cuts);

// None when the two have no element in common.
std::optional<Box> intersection(const Box& a, const Box& b);

// A stretch of consecutive elements of a box that are consecutive in the tensor too, row-major.
struct Run {
  int64_t in_tensor = 0, in_box = 0;  // the first element's index in each
  int64_t count = 0;
};
// Calls `visit` for the longest such stretches of `box`, a part of a tensor of `shape`, in row-major order.
void for_each_run(const std::vector<int64_t>& shape, const Box& box,
                  const std::function<void(const Run&)>& visit);

}  // namespace hyperion
