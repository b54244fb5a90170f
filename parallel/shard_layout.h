// Which rows of a parameter each rank of the fsdp group holds: torch.chunk's arithmetic on the first
// dimension, so a rank's part may be short or empty; rank 0's is never short.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hyperion::parallel {

struct ShardLayout {
  int64_t rows = 0;
  int64_t world = 1;

  int64_t rows_per_rank() const {
    return (rows + world - 1) / world;
  }  // what every rank stores, padding included
  int64_t begin(int64_t rank) const { return std::min(rows, rank * rows_per_rank()); }
  int64_t end(int64_t rank) const { return std::min(rows, (rank + 1) * rows_per_rank()); }
  int64_t count(int64_t rank) const { return end(rank) - begin(rank); }
};

}  // namespace hyperion::parallel
