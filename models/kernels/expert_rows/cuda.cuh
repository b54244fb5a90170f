// Rows are sorted by a counting sort, in which each block counts and places kAssignmentsPerBlock assignments,
// one per thread. It uses no atomics and is deterministic. Each block reads the counts of all blocks,
// blocks^2 x experts numbers in all: 17 MB for 65,536 assignments and 256 experts, which fit in L2. It would
// be 4.3 GB for a million assignments, so above kMaxBlocksRead blocks one more launch sums the counts, and a
// block reads 2 x experts numbers. The other kernels have a block per row, token or assignment.
#pragma once

#include "models/kernels/common/plan.cuh"
#include "models/kernels/expert_rows/task.h"

namespace hyperion::kernels {

constexpr unsigned kRowThreads = 256, kSumThreads = 256;

// Reads the block's choices; entries behind the last choice are -1.
__device__ inline void read_choices(const OrderRowsTask& task, int* choices) {
  const int64_t assignment = static_cast<int64_t>(blockIdx.x) * kAssignmentsPerBlock + threadIdx.x;
  choices[threadIdx.x] = assignment < task.assignment_count ? task.choices[assignment] : -1;
  __syncthreads();
}

// The kernel is a template, as place_slots is, so that a header can define it.
template <int kAssignments>
__global__ void __launch_bounds__(kAssignments) count_choices(const OrderRowsTask task) {
  __shared__ int choices[kAssignments];
  read_choices(task, choices);
  for (int e = static_cast<int>(threadIdx.x); e < task.experts; e += kAssignments) {
    int count = 0;
    for (int i = 0; i < kAssignments; ++i) count += choices[i] == e ? 1 : 0;
    task.counts[static_cast<int64_t>(blockIdx.x) * task.experts + e] = count;
  }
  // Rows without an assignment keep these values.
  const int64_t stride = static_cast<int64_t>(task.blocks) * kAssignments;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kAssignments + threadIdx.x; row < task.row_count;
       row += stride)
    task.assignments[row] = task.tokens[row] = 0;
}

// A block replaces the counts of its expert by the sums of earlier blocks' counts, and writes the sum of all
// behind them.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) sum_counts(const OrderRowsTask task) {
  __shared__ int sums[kThreads];  // of the blocks of each thread
  int* const counts = task.counts + blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x), each = (task.blocks + kThreads - 1) / kThreads;
  const int first = thread * each, end = first + each < task.blocks ? first + each : task.blocks;
  int own = 0;
  for (int block = first; block < end; ++block) own += counts[static_cast<int64_t>(block) * task.experts];
  sums[thread] = own;
  __syncthreads();
  int earlier = 0;
  for (int other = 0; other < thread; ++other) earlier += sums[other];
  for (int block = first; block < end; ++block) {
    int& count = counts[static_cast<int64_t>(block) * task.experts];
    const int next = earlier + count;
    count = earlier;
    earlier = next;
  }
  if (thread == kThreads - 1) counts[static_cast<int64_t>(task.blocks) * task.experts] = earlier;
}

// Returns the number of rows of a group with `assignments` assignments.
__device__ inline int rows_of_group(const OrderRowsTask& task, int assignments) {
  if (task.unit == 0) return assignments;
  return (assignments < 1 ? 1 : (assignments + task.unit - 1) / task.unit) * task.unit;
}

template <int kAssignments>
__global__ void __launch_bounds__(kAssignments) place_slots(const OrderRowsTask task) {
  __shared__ int choices[kAssignments], all[kMaxRowGroups], next[kMaxRowGroups];
  read_choices(task, choices);
  const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  for (int e = thread; e < task.experts; e += kAssignments) {
    int total = 0, earlier = 0;  // assignments of all blocks, and of earlier blocks
    if (task.blocks > kMaxBlocksRead) {
      total = task.counts[static_cast<int64_t>(task.blocks) * task.experts + e];
      earlier = task.counts[static_cast<int64_t>(block) * task.experts + e];
    } else {
      for (int other = 0; other < task.blocks; ++other) {
        const int count = task.counts[static_cast<int64_t>(other) * task.experts + e];
        total += count;
        earlier += other < block ? count : 0;
      }
    }
    all[e] = total;
    next[e] = earlier;
  }
  __syncthreads();
  for (int e = thread; e < task.experts; e += kAssignments) {
    int first = 0;
    for (int before = 0; before < e; ++before) first += rows_of_group(task, all[before]);
    next[e] += first;
    if (block != 0) continue;
    task.expert_rows[e] = all[e];
    if (task.unit == 0) continue;
    const int end = first + rows_of_group(task, all[e]);
    task.ends[e] = end;
    for (int i = 0; i < task.unit; ++i)
      task.padding[static_cast<int64_t>(e) * task.unit + i] =
          first + all[e] + i < end ? first + all[e] + i : task.row_count - 1;
  }
  __syncthreads();
  const int expert = choices[thread];
  if (expert < 0) return;
  int row = next[expert];
  for (int i = 0; i < thread; ++i) row += choices[i] == expert ? 1 : 0;
  const int64_t assignment = static_cast<int64_t>(block) * kAssignments + thread;
  task.assignments[row] = static_cast<int>(assignment);
  task.tokens[row] = static_cast<int>(assignment / task.top_k);
  task.rows[assignment] = row;
}

// Returns x times the weight, rounded; x if `weight` is null.
template <typename T, int kChunk>
__device__ inline Chunk<T, kChunk> weighted(Chunk<T, kChunk> x, const float* weight) {
  if (weight != nullptr)
    for (int i = 0; i < kChunk; ++i) x.values[i] = rounded<T>(widened(x.values[i]) * *weight);
  return x;
}

template <typename T, int kChunk>
__global__ void __launch_bounds__(kRowThreads) gather_row(const GatherRowsTask task) {
  const int64_t row = blockIdx.x, assignment = task.assignments[row];
  const bool taken = task.rows[assignment] == row;
  const T* const from = static_cast<const T*>(task.x) + task.tokens[row] * task.n;
  T* const to = static_cast<T*>(task.out) + row * task.n;
  const float* const weight = task.weights == nullptr ? nullptr : task.weights + assignment;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * kChunk;
  for (int64_t at = static_cast<int64_t>(threadIdx.x) * kChunk; at < task.n; at += stride) {
    Chunk<T, kChunk> x = {};
    if (taken) x = weighted(load<kChunk>(from + at), weight);
    store<kChunk>(to + at, x);
  }
}

// Sums a token's rows in the order of its assignments, as on a CPU.
template <typename T, int kChunk>
__global__ void __launch_bounds__(kRowThreads) sum_rows_of_token(const SumRowsTask task) {
  const int64_t token = blockIdx.x;
  const int32_t* const rows = task.rows + token * task.top_k;
  const float* const weights = task.weights == nullptr ? nullptr : task.weights + token * task.top_k;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * kChunk;
  for (int64_t at = static_cast<int64_t>(threadIdx.x) * kChunk; at < task.n; at += stride) {
    float sums[kChunk] = {};
    for (int k = 0; k < task.top_k; ++k) {
      const auto x = load<kChunk>(static_cast<const T*>(task.in) + rows[k] * task.n + at);
      const float weight = weights == nullptr ? 1.0f : weights[k];
      for (int i = 0; i < kChunk; ++i) sums[i] += weight * widened(x.values[i]);
    }
    if (task.added != nullptr) {
      const auto x = load<kChunk>(static_cast<const T*>(task.added) + token * task.n + at);
      for (int i = 0; i < kChunk; ++i) sums[i] += widened(x.values[i]);
    }
    Chunk<T, kChunk> out;
    for (int i = 0; i < kChunk; ++i) out.values[i] = rounded<T>(sums[i]);
    store<kChunk>(static_cast<T*>(task.out) + token * task.n + at, out);
  }
}

template <typename T, int kChunk>
__global__ void __launch_bounds__(kRowThreads) row_products(const RowProductsTask task) {
  const bool weights_rows = task.weights != nullptr;
  const int64_t row = weights_rows ? static_cast<int64_t>(blockIdx.x) : task.rows[blockIdx.x];
  const int64_t assignment = weights_rows ? task.assignments[row] : static_cast<int64_t>(blockIdx.x);
  const bool taken = task.rows[assignment] == row;
  const float* const weight = weights_rows ? task.weights + assignment : nullptr;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * kChunk;
  float product = 0;
  for (int64_t at = row * task.n + static_cast<int64_t>(threadIdx.x) * kChunk; at < (row + 1) * task.n;
       at += stride) {
    Chunk<T, kChunk> a = {}, b = {};
    if (taken) {
      a = load<kChunk>(static_cast<const T*>(task.a) + at);
      b = load<kChunk>(static_cast<const T*>(task.b) + at);
      for (int i = 0; i < kChunk; ++i) product += widened(a.values[i]) * widened(b.values[i]);
      a = weighted(a, weight);
      b = weighted(b, weight);
    }
    if (!weights_rows) continue;
    store<kChunk>(static_cast<T*>(task.weighted_a) + at, a);
    store<kChunk>(static_cast<T*>(task.weighted_b) + at, b);
  }
  product = block_sum(product);
  if (taken && threadIdx.x == 0) task.products[assignment] = product;
}

template <typename Run>
cudaError_t plan(const OrderRowsTask& task, Element /*of nothing*/, const Run& run) {
  const cudaError_t counted =
      run(count_choices<kAssignmentsPerBlock>, task, task.blocks, unsigned{kAssignmentsPerBlock});
  if (counted != cudaSuccess) return counted;
  if (task.blocks > kMaxBlocksRead) {
    const cudaError_t summed = run(sum_counts<int{kSumThreads}>, task, task.experts, kSumThreads);
    if (summed != cudaSuccess) return summed;
  }
  return run(place_slots<kAssignmentsPerBlock>, task, task.blocks, unsigned{kAssignmentsPerBlock});
}

// Runs a kernel with one block for each of `blocks` rows of n elements.
template <typename Task, typename Run>
cudaError_t run_rows(const Variants<Task>& variants, const Task& task, Element element, bool alignment,
                     int64_t blocks, const Run& run) {
  const int chunk = alignment && divides(chunk_of(element), {task.n}) ? chunk_of(element) : 1;
  return run(variants.of(element, chunk), task, blocks, threads_for(task.n / chunk, 2, kRowThreads));
}

template <typename Run>
cudaError_t plan(const GatherRowsTask& task, Element element, const Run& run) {
  const auto variants = variants_of<GatherRowsTask>(
      [](auto x, auto chunk) { return gather_row<decltype(x), decltype(chunk)::value>; });
  return run_rows(variants, task, element, aligned({task.x, task.out}), task.row_count, run);
}

template <typename Run>
cudaError_t plan(const SumRowsTask& task, Element element, const Run& run) {
  const auto variants = variants_of<SumRowsTask>(
      [](auto x, auto chunk) { return sum_rows_of_token<decltype(x), decltype(chunk)::value>; });
  return run_rows(variants, task, element, aligned({task.in, task.added, task.out}), task.tokens, run);
}

template <typename Run>
cudaError_t plan(const RowProductsTask& task, Element element, const Run& run) {
  const auto variants = variants_of<RowProductsTask>(
      [](auto x, auto chunk) { return row_products<decltype(x), decltype(chunk)::value>; });
  return run_rows(variants, task, element, aligned({task.a, task.b, task.weighted_a, task.weighted_b}),
                  task.weights != nullptr ? task.row_count : task.assignment_count, run);
}

}  // namespace hyperion::kernels
