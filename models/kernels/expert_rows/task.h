// What the CUDA kernels of experts' rows are given. Indices are int64, weights and products fp32; rows lie
// without gaps.
#pragma once

#include "models/kernels/common/launch.h"
#include "models/kernels/common/limits.h"

namespace hyperion::kernels {

constexpr int kSlotsOfBlock = 512;

// Two launches: the slots of each expert among those of each block, then the rows.
struct OrderRowsTask {
  const int64_t* choices = nullptr;  // [slots]
  int64_t slot_count = 0, row_count = 0;
  int blocks = 0, experts = 0, top_k = 0, unit = 0;
  int* counts = nullptr;  // [blocks, experts]
  int64_t *slots = nullptr, *tokens = nullptr, *rows = nullptr, *expert_rows = nullptr;
  int* ends = nullptr;         // null: groups are not padded
  int64_t* padding = nullptr;  // [experts, unit]
};

// Where a row's slot is another row's, the row is one of the padding.
struct GatherRowsTask {
  const void* x = nullptr;  // [tokens, n]
  void* out = nullptr;      // [row_count, n]
  const int64_t *slots = nullptr, *tokens = nullptr, *rows = nullptr;
  const float* weights = nullptr;  // [slots]; null: none
  int64_t row_count = 0, n = 0;
};

struct SumRowsTask {
  const void *in = nullptr, *added = nullptr;  // [rows, n]; [tokens, n] or null
  void* out = nullptr;                         // [tokens, n]
  const int64_t* rows = nullptr;               // [tokens, top_k]
  const float* weights = nullptr;              // [tokens, top_k]; null: none
  int64_t tokens = 0, n = 0;
  int top_k = 0;
};

// With weights [slots] also a and b times them, [row_count, n]; without, a block is a slot's.
struct RowProductsTask {
  const void *a = nullptr, *b = nullptr;  // [row_count, n]
  void *weighted_a = nullptr, *weighted_b = nullptr;
  float* products = nullptr;  // [slots]
  const int64_t *slots = nullptr, *rows = nullptr;
  const float* weights = nullptr;
  int64_t slot_count = 0, row_count = 0, n = 0;
};

cudaError_t launch(const OrderRowsTask& task, Element element, cudaStream_t stream);
cudaError_t launch(const GatherRowsTask& task, Element element, cudaStream_t stream);
cudaError_t launch(const SumRowsTask& task, Element element, cudaStream_t stream);
cudaError_t launch(const RowProductsTask& task, Element element, cudaStream_t stream);

}  // namespace hyperion::kernels
