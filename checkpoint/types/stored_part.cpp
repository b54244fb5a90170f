#include "checkpoint/types/stored_part.h"

#include <algorithm>
#include <cstring>

namespace hyperion::checkpoint {

void transpose_matrices(const Dims& shape, size_t bytes, const std::byte* in, std::byte* out) {
  constexpr int64_t kTile = 32;  // rows and columns that stay in the cache
  const int64_t rows = shape[1], columns = shape[2];
  for (int64_t matrix = 0; matrix < shape[0]; ++matrix) {
    for (int64_t row = 0; row < rows; row += kTile)
      for (int64_t column = 0; column < columns; column += kTile)
        for (int64_t r = row; r < std::min(row + kTile, rows); ++r)
          for (int64_t c = column; c < std::min(column + kTile, columns); ++c)
            std::memcpy(out + static_cast<size_t>(c * rows + r) * bytes,
                        in + static_cast<size_t>(r * columns + c) * bytes, bytes);
    in += static_cast<size_t>(rows * columns) * bytes;
    out += static_cast<size_t>(rows * columns) * bytes;
  }
}

}  // namespace hyperion::checkpoint
