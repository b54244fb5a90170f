// A block rotates the query and key heads of one token by its position's angles, and copies its values. A
// thread rotates kChunk pairs at a time, which are two chunks: adjacent ones if pairs are neighbours, else
// one from each half of a head.
#pragma once

#include "models/kernels/common/plan.cuh"
#include "models/kernels/rope/task.h"

namespace hyperion::kernels {

constexpr unsigned kRopeThreads = 256;

__device__ inline int64_t offset_of(const HeadsLayout& heads, int64_t part, int64_t sequence,
                                    int64_t position, int head) {
  return heads.part * part + heads.sequence * sequence + heads.position * position + heads.head * head;
}

template <typename T, int kChunk>
__device__ inline void turn_pairs(Chunk<T, kChunk>& first, Chunk<T, kChunk>& second, const float* cos,
                                  const float* sin, bool inverse, bool interleaved) {
  const Chunk<float, kChunk> c = load<kChunk>(cos), s = load<kChunk>(sin);
  float x[2 * kChunk];
  for (int i = 0; i < kChunk; ++i) {
    x[i] = widened(first.values[i]);
    x[kChunk + i] = widened(second.values[i]);
  }
  float y[2 * kChunk];
  for (int i = 0; i < kChunk; ++i) {
    const float angle_sin = inverse ? -s.values[i] : s.values[i];
    const float a = interleaved ? x[2 * i] : x[i], b = interleaved ? x[2 * i + 1] : x[kChunk + i];
    const float turned_a = a * c.values[i] - b * angle_sin, turned_b = a * angle_sin + b * c.values[i];
    y[interleaved ? 2 * i : i] = turned_a;
    y[interleaved ? 2 * i + 1 : kChunk + i] = turned_b;
  }
  for (int i = 0; i < kChunk; ++i) {
    first.values[i] = rounded<T>(y[i]);
    second.values[i] = rounded<T>(y[kChunk + i]);
  }
}

template <typename T, int kChunk, bool kInterleaved>
__global__ void __launch_bounds__(kRopeThreads) rope_token(const RopeTask task) {
  const int64_t token = blockIdx.x;
  const int64_t sequence = token / task.length, place = token % task.length;
  const int64_t part = place / task.each, position = place % task.each;
  const int64_t angle = token % task.positions * task.half;
  const int per_head = task.half / kChunk;
  const int turned_heads = task.heads + task.kv_heads;
  const int units = (turned_heads + (task.v.data != nullptr ? task.kv_heads : 0)) * per_head;
  for (int unit = static_cast<int>(threadIdx.x); unit < units; unit += static_cast<int>(blockDim.x)) {
    const int head = unit / per_head, pair = unit % per_head * kChunk;
    const bool is_q = head < task.heads, is_v = head >= turned_heads;
    const HeadsLayout& from = is_q ? task.q : is_v ? task.v : task.k;
    const HeadsLayout& to = is_q ? task.q_out : is_v ? task.v_out : task.k_out;
    const int own = is_q ? head : is_v ? head - turned_heads : head - task.heads;
    const T* const in = static_cast<const T*>(from.data) + offset_of(from, part, sequence, position, own);
    T* const out = static_cast<T*>(to.data) + offset_of(to, part, sequence, position, own);
    const int first = kInterleaved ? 2 * pair : pair,
              second = kInterleaved ? 2 * pair + kChunk : task.half + pair;
    Chunk<T, kChunk> a = load<kChunk>(in + first), b = load<kChunk>(in + second);
    if (!is_v)
      turn_pairs<T, kChunk>(a, b, task.cos + angle + pair, task.sin + angle + pair, task.inverse,
                            kInterleaved);
    store<kChunk>(out + first, a);
    store<kChunk>(out + second, b);
  }
}

template <typename Run>
cudaError_t plan(const RopeTask& task, Element element, const Run& run) {
  const int whole = chunk_of(element);
  bool chunks = task.half % whole == 0 && aligned({task.cos, task.sin});
  for (const HeadsLayout* heads : {&task.q, &task.k, &task.v, &task.q_out, &task.k_out, &task.v_out})
    chunks = chunks && aligned({heads->data}) &&
             divides(whole, {heads->part, heads->sequence, heads->position, heads->head});
  const auto neighbours = variants_of<RopeTask>(
      [](auto x, auto chunk) { return rope_token<decltype(x), decltype(chunk)::value, true>; });
  const auto halves = variants_of<RopeTask>(
      [](auto x, auto chunk) { return rope_token<decltype(x), decltype(chunk)::value, false>; });
  const int chunk = chunks ? whole : 1;
  const int64_t units = int64_t{task.heads + 2 * task.kv_heads} * (task.half / chunk);
  return run((task.interleaved ? neighbours : halves).of(element, chunk), task, task.sequences * task.length,
             threads_for(units, 2, kRopeThreads));
}

}  // namespace hyperion::kernels
