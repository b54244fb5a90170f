// A block of add_group_bias has a part of one row. A block of sum_groups has kWarp chunks of columns of one
// group: each of its warps sums every kGroupSumWarps-th row, and the first adds their sums in order.
#pragma once

#include "models/kernels/common/plan.cuh"
#include "models/kernels/group_bias/task.h"

namespace hyperion::kernels {

constexpr unsigned kBiasThreads = 256;
constexpr int kGroupSumWarps = 8;

template <typename T, int kChunk>
__global__ void __launch_bounds__(kBiasThreads) add_group_bias_chunk(const GroupBiasTask task) {
  const auto units = static_cast<unsigned>(task.n / kChunk);
  const unsigned blocks = (units + blockDim.x - 1) / blockDim.x;
  const int64_t row = blockIdx.x / blocks;
  const unsigned unit = blockIdx.x % blocks * blockDim.x + threadIdx.x;
  if (unit >= units || row >= task.ends[task.groups - 1]) return;
  int first = 0, last = task.groups - 1;  // the group is one of them: the first that ends behind the row
  while (first < last) {
    const int middle = (first + last) / 2;
    if (task.ends[middle] > row)
      last = middle;
    else
      first = middle + 1;
  }
  const int64_t column = static_cast<int64_t>(unit) * kChunk;
  T* const at = static_cast<T*>(task.rows) + row * task.stride + column;
  auto x = load<kChunk>(static_cast<const T*>(at));
  const auto bias = load<kChunk>(static_cast<const T*>(task.bias) + first * task.n + column);
  for (int i = 0; i < kChunk; ++i) x.values[i] = rounded<T>(widened(x.values[i]) + widened(bias.values[i]));
  store<kChunk>(at, x);
}

template <typename T, int kChunk>
__global__ void __launch_bounds__(kGroupSumWarps* kWarp) sum_group_columns(const SumGroupsTask task) {
  __shared__ float sums[kGroupSumWarps][kWarp][kChunk];
  const int64_t units = task.n / kChunk, blocks = (units + kWarp - 1) / kWarp;
  const int64_t group = blockIdx.x / blocks;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t unit = blockIdx.x % blocks * kWarp + lane;
  const bool inside = unit < units;
  float own[kChunk] = {};
  const int64_t first = group == 0 ? 0 : task.ends[group - 1], end = task.ends[group];
  for (int64_t row = first + warp; inside && row < end; row += kGroupSumWarps) {
    const auto x = load<kChunk>(static_cast<const T*>(task.grad) + row * task.stride + unit * kChunk);
    for (int i = 0; i < kChunk; ++i) own[i] += widened(x.values[i]);
  }
  for (int i = 0; i < kChunk; ++i) sums[warp][lane][i] = own[i];
  __syncthreads();
  if (warp > 0 || !inside) return;
  Chunk<T, kChunk> result;
  for (int i = 0; i < kChunk; ++i) {
    float sum = own[i];
    for (int other = 1; other < kGroupSumWarps; ++other) sum += sums[other][lane][i];
    result.values[i] = rounded<T>(sum);
  }
  store<kChunk>(static_cast<T*>(task.sums) + group * task.n + unit * kChunk, result);
}

template <typename Run>
cudaError_t plan(const GroupBiasTask& task, Element element, const Run& run) {
  const bool chunks = divides(chunk_of(element), {task.n, task.stride}) && aligned({task.rows, task.bias});
  const int chunk = chunks ? chunk_of(element) : 1;
  const unsigned threads = threads_for(task.n / chunk, 1, kBiasThreads);
  const int64_t blocks = task.count * ((task.n / chunk + threads - 1) / threads);
  const auto variants = variants_of<GroupBiasTask>(
      [](auto x, auto elements) { return add_group_bias_chunk<decltype(x), decltype(elements)::value>; });
  return run(variants.of(element, chunk), task, blocks, threads);
}

template <typename Run>
cudaError_t plan(const SumGroupsTask& task, Element element, const Run& run) {
  const bool chunks = divides(chunk_of(element), {task.n, task.stride}) && aligned({task.grad, task.sums});
  const int chunk = chunks ? chunk_of(element) : 1;
  const int64_t units = task.n / chunk, blocks = task.groups * ((units + kWarp - 1) / kWarp);
  const auto variants = variants_of<SumGroupsTask>(
      [](auto x, auto elements) { return sum_group_columns<decltype(x), decltype(elements)::value>; });
  return run(variants.of(element, chunk), task, blocks, unsigned{kGroupSumWarps * kWarp});
}

}  // namespace hyperion::kernels
