// The position of a job's tensor within another program's tensor of another shape. Pure arithmetic.
#pragma once

#include <optional>

#include "base/box.h"
#include "checkpoint/types/index.h"

namespace hyperion::checkpoint {

struct StoredPart {
  // If 0 or above, the stored tensor is this matrix of the job's stack [matrices, rows, columns].
  int64_t matrix = -1;
  // If above 0, the stored tensor is a stack [matrices, columns, width] in which the rows of the job's
  // matrices are columns, from `first` on; other tensors fill the rest of `width`.
  int64_t width = 0, first = 0;

  bool transposes() const { return width > 0; }
  bool operator==(const StoredPart&) const = default;
};

// The shape of the stored tensor, for a job's tensor of `shape`.
inline Dims stored_shape(const StoredPart& part, const Dims& shape) {
  if (part.matrix >= 0) return {shape.begin() + 1, shape.end()};
  if (part.transposes()) return {shape[0], shape[2], part.width};
  return shape;
}

// The part of a box of the job's tensor that the stored tensor has; nullopt if it is empty.
inline std::optional<Box> box_in_part(const StoredPart& part, const Dims& shape, const Box& box) {
  Box stored = whole_box(shape);
  if (part.matrix >= 0) {
    stored.offset[0] = part.matrix;
    stored.shape[0] = 1;
  }
  return intersection(stored, box);
}

// Converts a box of the job's tensor, inside the part, to the box of the stored tensor.
inline Box stored_box(const StoredPart& part, const Box& box) {
  if (part.matrix >= 0)
    return {{box.offset.begin() + 1, box.offset.end()}, {box.shape.begin() + 1, box.shape.end()}};
  if (part.transposes())
    return {{box.offset[0], box.offset[2], part.first + box.offset[1]},
            {box.shape[0], box.shape[2], box.shape[1]}};
  return box;
}

// Converts a box of the stored tensor to the box of the job's tensor.
inline Box job_box(const StoredPart& part, Box stored) {
  if (part.matrix >= 0) {
    stored.offset.insert(stored.offset.begin(), part.matrix);
    stored.shape.insert(stored.shape.begin(), 1);
  }
  if (part.transposes())
    stored = {{stored.offset[0], stored.offset[2] - part.first, stored.offset[1]},
              {stored.shape[0], stored.shape[2], stored.shape[1]}};
  return stored;
}

// out[matrix][column][row] = in[matrix][row][column], elements of `bytes` each.
void transpose_matrices(const Dims& shape, size_t bytes, const std::byte* in, std::byte* out);

}  // namespace hyperion::checkpoint
