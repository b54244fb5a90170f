// silu(gate) * up and its gradients: one pass, a thread per chunk of a row. Rounded where the plain form
// stores a tensor.
#pragma once

#include <cmath>

#include "models/kernels/common/chunks.cuh"
#include "models/kernels/common/launch.h"

namespace hyperion::kernels {

constexpr unsigned kSwigluThreads = 256;

struct ChunkOfRow {
  int64_t row, column;
  bool inside;
};
template <int kChunk>
__device__ inline ChunkOfRow chunk_of_thread(int64_t n) {
  const auto units = static_cast<unsigned>(n / kChunk);
  const unsigned blocks = (units + blockDim.x - 1) / blockDim.x;
  const unsigned unit = blockIdx.x % blocks * blockDim.x + threadIdx.x;
  return {blockIdx.x / blocks, static_cast<int64_t>(unit) * kChunk, unit < units};
}

template <typename T, int kChunk>
__global__ void __launch_bounds__(kSwigluThreads) swiglu_chunk(const SwigluTask task) {
  const ChunkOfRow at = chunk_of_thread<kChunk>(task.n);
  if (!at.inside) return;
  const auto gate = load<kChunk>(static_cast<const T*>(task.gate) + at.row * task.gate_stride + at.column);
  const auto up = load<kChunk>(static_cast<const T*>(task.up) + at.row * task.up_stride + at.column);
  Chunk<T, kChunk> result;
  for (int i = 0; i < kChunk; ++i) {
    const float g = widened(gate.values[i]);
    const T activated = rounded<T>(g / (1.0f + expf(-g)));
    result.values[i] = rounded<T>(widened(activated) * widened(up.values[i]));
  }
  store<kChunk>(static_cast<T*>(task.output) + at.row * task.n + at.column, result);
}

template <typename T, int kChunk>
__global__ void __launch_bounds__(kSwigluThreads) swiglu_backward_chunk(const SwigluTask task) {
  const ChunkOfRow at = chunk_of_thread<kChunk>(task.n);
  if (!at.inside) return;
  const auto gate = load<kChunk>(static_cast<const T*>(task.gate) + at.row * task.gate_stride + at.column);
  const auto up = load<kChunk>(static_cast<const T*>(task.up) + at.row * task.up_stride + at.column);
  const auto grad = load<kChunk>(static_cast<const T*>(task.grad) + at.row * task.grad_stride + at.column);
  Chunk<T, kChunk> of_gate, of_up;
  for (int i = 0; i < kChunk; ++i) {
    const float g = widened(gate.values[i]), d = widened(grad.values[i]);
    const float sigmoid = 1.0f / (1.0f + expf(-g));
    const float of_activated = widened(rounded<T>(d * widened(up.values[i])));
    const float activated = widened(rounded<T>(g / (1.0f + expf(-g))));
    of_gate.values[i] = rounded<T>(of_activated * sigmoid * (1.0f + g * (1.0f - sigmoid)));
    of_up.values[i] = rounded<T>(activated * d);
  }
  T* const row = static_cast<T*>(task.packed) + at.row * 2 * task.n;
  store<kChunk>(row + at.column, of_gate);
  store<kChunk>(row + task.n + at.column, of_up);
}

}  // namespace hyperion::kernels
