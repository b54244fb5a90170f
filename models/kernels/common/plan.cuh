// How a task is run: which variant of its kernel, with how many blocks and threads. `run(kernel, task,
// blocks, threads)` launches it, or in tests runs it on CPU threads.
#pragma once

#include <initializer_list>

#include "models/kernels/cross_entropy/cuda.cuh"
#include "models/kernels/gated_activation/cuda.cuh"
#include "models/kernels/rms_norm/cuda.cuh"
#include "models/kernels/rope/cuda.cuh"

namespace hyperion::kernels {

// Elements of 16 bytes.
constexpr int chunk_of(Element element) {
  return element == Element::kFloat ? 4 : 8;
}

inline bool divides(int64_t chunk, std::initializer_list<int64_t> extents) {
  for (const int64_t extent : extents)
    if (extent % chunk != 0) return false;
  return true;
}

inline bool aligned(std::initializer_list<const void*> addresses) {
  for (const void* address : addresses)
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) return false;
  return true;
}

// A kernel for each element type, in chunks of 16 bytes and element by element.
template <typename Task>
struct Variants {
  using Kernel = void (*)(Task);
  Kernel float_chunks, float_single, bf16_chunks, bf16_single;

  Kernel of(Element element, int chunk) const {
    if (element == Element::kFloat) return chunk > 1 ? float_chunks : float_single;
    return chunk > 1 ? bf16_chunks : bf16_single;
  }
};

template <typename Run>
cudaError_t plan(const RopeTask& task, Element element, const Run& run) {
  const int whole = chunk_of(element);
  bool chunks = task.half % whole == 0 && aligned({task.cos, task.sin});
  for (const HeadsLayout* heads : {&task.q, &task.k, &task.v, &task.q_out, &task.k_out, &task.v_out})
    chunks = chunks && aligned({heads->data}) &&
             divides(whole, {heads->part, heads->sequence, heads->position, heads->head});
  const Variants<RopeTask> neighbours = {rope_token<float, 4, true>, rope_token<float, 1, true>,
                                         rope_token<__nv_bfloat16, 8, true>,
                                         rope_token<__nv_bfloat16, 1, true>};
  const Variants<RopeTask> halves = {rope_token<float, 4, false>, rope_token<float, 1, false>,
                                     rope_token<__nv_bfloat16, 8, false>,
                                     rope_token<__nv_bfloat16, 1, false>};
  const int chunk = chunks ? whole : 1;
  const int64_t units = int64_t{task.heads + 2 * task.kv_heads} * (task.half / chunk);
  return run((task.interleaved ? neighbours : halves).of(element, chunk), task, task.sequences * task.length,
             threads_for(units, 2, kRopeThreads));
}

template <typename Run>
cudaError_t plan(const SwigluTask& task, Element element, const Run& run) {
  const bool chunks =
      divides(chunk_of(element), {task.n, task.gate_stride, task.up_stride, task.grad_stride}) &&
      aligned({task.gate, task.up, task.grad, task.output, task.packed});
  const int chunk = chunks ? chunk_of(element) : 1;
  const unsigned threads = threads_for(task.n / chunk, 1, kSwigluThreads);
  const int64_t blocks = task.rows * ((task.n / chunk + threads - 1) / threads);
  const Variants<SwigluTask> forward = {swiglu_chunk<float, 4>, swiglu_chunk<float, 1>,
                                        swiglu_chunk<__nv_bfloat16, 8>, swiglu_chunk<__nv_bfloat16, 1>};
  const Variants<SwigluTask> backward = {swiglu_backward_chunk<float, 4>, swiglu_backward_chunk<float, 1>,
                                         swiglu_backward_chunk<__nv_bfloat16, 8>,
                                         swiglu_backward_chunk<__nv_bfloat16, 1>};
  return run((task.grad == nullptr ? forward : backward).of(element, chunk), task, blocks, threads);
}

template <typename Run>
cudaError_t plan(const AddRmsNormTask& task, Element element, const Run& run) {
  const bool chunks = divides(chunk_of(element), {task.n}) &&
                      aligned({task.x, task.residual, task.weight, task.sum, task.output});
  const int chunk = chunks ? chunk_of(element) : 1;
  const Variants<AddRmsNormTask> variants = {add_rms_norm_row<float, 4>, add_rms_norm_row<float, 1>,
                                             add_rms_norm_row<__nv_bfloat16, 8>,
                                             add_rms_norm_row<__nv_bfloat16, 1>};
  return run(variants.of(element, chunk), task, task.rows, threads_for(task.n / chunk, kHeld, kNormThreads));
}

template <typename Run>
cudaError_t plan(const AddRmsNormBackwardTask& task, Element element, const Run& run) {
  const bool chunks = divides(chunk_of(element), {task.n}) &&
                      aligned({task.grad, task.grad_sum, task.sum, task.weight, task.grad_x, task.partial}) &&
                      aligned({task.more[0], task.more[1]});
  const int chunk = chunks ? chunk_of(element) : 1;
  const Variants<AddRmsNormBackwardTask> variants = {
      add_rms_norm_backward_rows<float, 4>, add_rms_norm_backward_rows<float, 1>,
      add_rms_norm_backward_rows<__nv_bfloat16, 8>, add_rms_norm_backward_rows<__nv_bfloat16, 1>};
  const cudaError_t rows = run(variants.of(element, chunk), task, task.blocks,
                               threads_for(task.n / chunk, kHeld, kNormBackwardThreads));
  if (rows != cudaSuccess) return rows;
  return run(element == Element::kFloat ? sum_weight_gradient<float> : sum_weight_gradient<__nv_bfloat16>,
             task, (task.n + kWarp - 1) / kWarp, unsigned{kWarp * kSumWarps});
}

template <typename Run>
cudaError_t plan(const CrossEntropyTask& task, Element element, const Run& run) {
  const bool chunks = divides(chunk_of(element), {task.columns}) && aligned({task.logits});
  const int chunk = chunks ? chunk_of(element) : 1;
  const Variants<CrossEntropyTask> losses = {cross_entropy_row<float, 4>, cross_entropy_row<float, 1>,
                                             cross_entropy_row<__nv_bfloat16, 8>,
                                             cross_entropy_row<__nv_bfloat16, 1>};
  const Variants<CrossEntropyTask> statistics = {
      vocab_statistics_row<float, 4>, vocab_statistics_row<float, 1>, vocab_statistics_row<__nv_bfloat16, 8>,
      vocab_statistics_row<__nv_bfloat16, 1>};
  const Variants<CrossEntropyTask> gradient = {vocab_gradient_row<float, 4>, vocab_gradient_row<float, 1>,
                                               vocab_gradient_row<__nv_bfloat16, 8>,
                                               vocab_gradient_row<__nv_bfloat16, 1>};
  const auto& wanted = task.losses != nullptr ? losses : task.statistics != nullptr ? statistics : gradient;
  return run(wanted.of(element, chunk), task, task.rows,
             threads_for(task.columns / chunk, 4, kCrossEntropyThreads));
}

}  // namespace hyperion::kernels
