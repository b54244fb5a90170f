// The arguments of the CUDA kernel of merged parts.
#pragma once

#include "models/kernels/rope/task.h"

namespace hyperion::kernels {

struct MergePartsTask {
  HeadsLayout output, part;       // [batch, queries, heads, head_dim]
  HeadsLayout lse, part_lse;      // fp32 [batch, queries, heads]
  bool wide = false;              // whether the output is fp32 for parts of any dtype
  int64_t rows = 0, queries = 0;  // rows: of all batches, heads and queries
  int heads = 0, head_dim = 0;
  int threads_of_row = 0, rows_of_block = 0;  // set by plan()
};

cudaError_t launch(const MergePartsTask& task, Element element, cudaStream_t stream);

}  // namespace hyperion::kernels
