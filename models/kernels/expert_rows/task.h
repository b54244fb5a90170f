// The arguments of the CUDA kernels of experts' rows. Indices of rows are int32, weights and products are
// fp32, and rows are contiguous.
#pragma once

#include "models/kernels/common/launch.h"
#include "models/kernels/common/limits.h"

namespace hyperion::kernels {

constexpr int kAssignmentsPerBlock = 512;
constexpr int kMaxBlocksRead = 400;  // up to this number each block reads the counts of all blocks

// Takes two launches: the first counts the assignments of each expert in each block, the last places the
// rows. Above kMaxBlocksRead blocks a launch between them sums the counts.
struct OrderRowsTask {
  const int32_t* choices = nullptr;  // [assignments]
  int64_t assignment_count = 0, row_count = 0;
  int blocks = 0, experts = 0, top_k = 0, unit = 0;
  int* counts = nullptr;  // [blocks + 1, experts], the last of them for the sums of all blocks
  int32_t *assignments = nullptr, *tokens = nullptr, *rows = nullptr;
  int64_t* expert_rows = nullptr;
  int* ends = nullptr;         // null: groups are not padded
  int64_t* padding = nullptr;  // [experts, unit]
};

// A row is padding if its assignment belongs to another row.
struct GatherRowsTask {
  const void* x = nullptr;  // [tokens, n]
  void* out = nullptr;      // [row_count, n]
  const int32_t *assignments = nullptr, *tokens = nullptr, *rows = nullptr;
  const float* weights = nullptr;  // [assignments]; null: none
  int64_t row_count = 0, n = 0;
};

struct SumRowsTask {
  const void *in = nullptr, *added = nullptr;  // [rows, n]; [tokens, n] or null
  void* out = nullptr;                         // [tokens, n]
  const int32_t* rows = nullptr;               // [tokens, top_k]
  const float* weights = nullptr;              // [tokens, top_k]; null: none
  int64_t tokens = 0, n = 0;
  int top_k = 0;
};

// With weights [assignments] the kernel also writes a and b times their weights, [row_count, n], and has a
// block per row; without, a block per assignment.
struct RowProductsTask {
  const void *a = nullptr, *b = nullptr;  // [row_count, n]
  void *weighted_a = nullptr, *weighted_b = nullptr;
  float* products = nullptr;  // [assignments]
  const int32_t *assignments = nullptr, *rows = nullptr;
  const float* weights = nullptr;
  int64_t assignment_count = 0, row_count = 0, n = 0;
};

cudaError_t launch(const OrderRowsTask& task, Element element, cudaStream_t stream);
cudaError_t launch(const GatherRowsTask& task, Element element, cudaStream_t stream);
cudaError_t launch(const SumRowsTask& task, Element element, cudaStream_t stream);
cudaError_t launch(const RowProductsTask& task, Element element, cudaStream_t stream);

}  // namespace hyperion::kernels
