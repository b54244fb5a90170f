// The kernels compute act(gate) * up and its gradients in one pass, with a thread per chunk of a row. They
// round wherever the plain form stores a tensor.
#pragma once

#include <cmath>

#include "models/kernels/common/plan.cuh"
#include "models/kernels/gated_activation/task.h"

namespace hyperion::kernels {

constexpr unsigned kActivationThreads = 256;

// Each activation function has value(x), and gradient(), which returns the gradient of x from the gradient of
// the value.
template <models::Activation>
struct Function;
template <>
struct Function<models::Activation::kSilu> {
  __device__ static float value(float x) { return x / (1.0f + expf(-x)); }
  __device__ static float gradient(float grad, float x) {
    const float sigmoid = 1.0f / (1.0f + expf(-x));
    return grad * sigmoid * (1.0f + x * (1.0f - sigmoid));
  }
};
// The function computes x / 2 (1 + tanh u) = x sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3):
// Hendrycks & Gimpel, arXiv 1606.08415.
template <>
struct Function<models::Activation::kGeluTanh> {
  static constexpr float kTwice = 1.5957691216f, kCubic = 0.044715f;  // 2 sqrt(2 / pi)
  __device__ static float value(float x) { return x / (1.0f + expf(-kTwice * (x + kCubic * x * x * x))); }
  __device__ static float gradient(float grad, float x) {
    const float s = 1.0f / (1.0f + expf(-kTwice * (x + kCubic * x * x * x)));
    return grad * (s + x * s * (1.0f - s) * kTwice * (1.0f + 3.0f * kCubic * x * x));
  }
};

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

template <models::Activation kActivation, typename T, int kChunk>
__global__ void __launch_bounds__(kActivationThreads) gated_activation_chunk(const GatedActivationTask task) {
  const ChunkOfRow at = chunk_of_thread<kChunk>(task.n);
  if (!at.inside) return;
  const auto gate = load<kChunk>(static_cast<const T*>(task.gate) + at.row * task.gate_stride + at.column);
  const auto up = load<kChunk>(static_cast<const T*>(task.up) + at.row * task.up_stride + at.column);
  Chunk<T, kChunk> result;
  for (int i = 0; i < kChunk; ++i) {
    const T activated = rounded<T>(Function<kActivation>::value(widened(gate.values[i])));
    result.values[i] = rounded<T>(widened(activated) * widened(up.values[i]));
  }
  store<kChunk>(static_cast<T*>(task.output) + at.row * task.n + at.column, result);
}

template <models::Activation kActivation, typename T, int kChunk>
__global__ void __launch_bounds__(kActivationThreads)
    gated_activation_backward_chunk(const GatedActivationTask task) {
  const ChunkOfRow at = chunk_of_thread<kChunk>(task.n);
  if (!at.inside) return;
  const auto gate = load<kChunk>(static_cast<const T*>(task.gate) + at.row * task.gate_stride + at.column);
  const auto up = load<kChunk>(static_cast<const T*>(task.up) + at.row * task.up_stride + at.column);
  const auto grad = load<kChunk>(static_cast<const T*>(task.grad) + at.row * task.grad_stride + at.column);
  Chunk<T, kChunk> grad_gate, grad_up;
  for (int i = 0; i < kChunk; ++i) {
    const float g = widened(gate.values[i]), d = widened(grad.values[i]);
    const float of_activated = widened(rounded<T>(d * widened(up.values[i])));
    const float activated = widened(rounded<T>(Function<kActivation>::value(g)));
    grad_gate.values[i] = rounded<T>(Function<kActivation>::gradient(of_activated, g));
    grad_up.values[i] = rounded<T>(activated * d);
  }
  T* const row = static_cast<T*>(task.packed) + at.row * 2 * task.n;
  store<kChunk>(row + at.column, grad_gate);
  store<kChunk>(row + task.n + at.column, grad_up);
}

// Runs backward if the task has a gradient, else forward.
template <models::Activation kActivation>
Variants<GatedActivationTask> kernels_of(const GatedActivationTask& task) {
  return variants_of<GatedActivationTask>([&](auto x, auto chunk) {
    return task.grad == nullptr
               ? gated_activation_chunk<kActivation, decltype(x), decltype(chunk)::value>
               : gated_activation_backward_chunk<kActivation, decltype(x), decltype(chunk)::value>;
  });
}

template <typename Run>
cudaError_t plan(const GatedActivationTask& task, Element element, const Run& run) {
  const bool chunks =
      divides(chunk_of(element), {task.n, task.gate_stride, task.up_stride, task.grad_stride}) &&
      aligned({task.gate, task.up, task.grad, task.output, task.packed});
  const int chunk = chunks ? chunk_of(element) : 1;
  const unsigned threads = threads_for(task.n / chunk, 1, kActivationThreads);
  const int64_t blocks = task.rows * ((task.n / chunk + threads - 1) / threads);
  const auto variants = models::with_activation(
      task.activation, [&](auto act) { return kernels_of<decltype(act)::value>(task); });
  return run(variants.of(element, chunk), task, blocks, threads);
}

}  // namespace hyperion::kernels
