// A block merges neighbouring queries of a head. The threads of a row move up to 16 bytes (of the wider
// dtype) at a time, and the first of them writes the row's log-sum-exp after all have read it.
#pragma once

#include <cfloat>
#include <cmath>

#include "models/kernels/common/plan.cuh"
#include "models/kernels/merge_parts/task.h"
#include "models/kernels/rope/cuda.cuh"

namespace hyperion::kernels {

constexpr int kMergeThreads = 256;

template <int kChunk, typename Part, typename Output>
__device__ inline void merge_elements(const Part* part, Output* output, float share) {
  const Chunk<Part, kChunk> x = load<kChunk>(part);
  Chunk<Output, kChunk> y = load<kChunk>(output);
  for (int i = 0; i < kChunk; ++i) {
    const float from = widened(y.values[i]), to = widened(x.values[i]);
    // at::lerp computes from the nearer end too.
    y.values[i] = rounded<Output>(share < 0.5F ? from + share * (to - from) : to - (1 - share) * (to - from));
  }
  store<kChunk>(output, y);
}

template <typename Part, typename Output, int kChunk>
__global__ void __launch_bounds__(kMergeThreads) merge_rows(const MergePartsTask task) {
  const int in_block = static_cast<int>(threadIdx.x) / task.threads_of_row,
            thread = static_cast<int>(threadIdx.x) % task.threads_of_row;
  const int64_t row = blockIdx.x * int64_t{task.rows_of_block} + in_block;
  const bool merges = in_block < task.rows_of_block && row < task.rows;
  const int64_t query = row % task.queries, sequence = row / task.queries / task.heads;
  const int head = static_cast<int>(row / task.queries % task.heads);
  float* lse = nullptr;
  float before = 0, of_part = 0;
  if (merges) {
    lse = static_cast<float*>(task.lse.data) + offset_of(task.lse, 0, sequence, query, head);
    before = *lse;
    of_part =
        *(static_cast<const float*>(task.part_lse.data) + offset_of(task.part_lse, 0, sequence, query, head));
  }
  __syncthreads();
  if (!merges) return;
  // The part's share of the exponentials. Where neither has a key, the difference must be no NaN.
  const float share = 1 / (1 + expf((before < -FLT_MAX ? -FLT_MAX : before) - of_part));
  if (thread == 0) {
    const float larger = before < of_part ? of_part : before, smaller = before < of_part ? before : of_part;
    const bool infinite = larger < -FLT_MAX || larger > FLT_MAX;
    *lse = infinite ? larger : larger + log1pf(expf(smaller - larger));
  }
  const Part* const part =
      static_cast<const Part*>(task.part.data) + offset_of(task.part, 0, sequence, query, head);
  Output* const output =
      static_cast<Output*>(task.output.data) + offset_of(task.output, 0, sequence, query, head);
  for (int at = thread * kChunk; at < task.head_dim; at += task.threads_of_row * kChunk)
    merge_elements<kChunk>(part + at, output + at, share);
}

template <typename Run>
cudaError_t plan(const MergePartsTask& given, Element element, const Run& run) {
  MergePartsTask task = given;
  const int whole = task.wide ? chunk_of(Element::kFloat) : chunk_of(element);
  bool chunks = divides(whole, {task.head_dim});
  for (const HeadsLayout* heads : {&task.output, &task.part})
    chunks =
        chunks && aligned({heads->data}) && divides(whole, {heads->sequence, heads->position, heads->head});
  const auto alike = variants_of<MergePartsTask>(
      [](auto x, auto size) { return merge_rows<decltype(x), decltype(x), decltype(size)::value>; });
  const Variants<MergePartsTask> into_floats = {merge_rows<float, float, 4>, merge_rows<float, float, 1>,
                                                merge_rows<__nv_bfloat16, float, 4>,
                                                merge_rows<__nv_bfloat16, float, 1>};
  const int chunk = chunks ? whole : 1, of_row = task.head_dim / chunk;
  task.threads_of_row = of_row < kMergeThreads ? of_row : kMergeThreads;
  task.rows_of_block = kMergeThreads / task.threads_of_row;
  return run((task.wide ? into_floats : alike).of(element, chunk), task,
             (task.rows + task.rows_of_block - 1) / task.rows_of_block, static_cast<unsigned>(kMergeThreads));
}

}  // namespace hyperion::kernels
