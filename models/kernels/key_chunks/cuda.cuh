// A block moves keys and values of neighbouring tokens of one chunk. A thread moves up to 16 bytes (of the
// wider dtype) of a head at a time, first the key and then the value of each token.
#pragma once

#include "models/kernels/common/plan.cuh"
#include "models/kernels/key_chunks/task.h"
#include "models/kernels/rope/cuda.cuh"

namespace hyperion::kernels {

constexpr unsigned kKeyThreads = 256;
constexpr int kUnitsOfKeyThread = 4;

template <int kChunk, typename From, typename To>
__device__ inline void move_elements(const From* from, To* to, bool add) {
  const Chunk<From, kChunk> x = load<kChunk>(from);
  Chunk<To, kChunk> y = add ? load<kChunk>(to) : Chunk<To, kChunk>{};
  for (int i = 0; i < kChunk; ++i) {
    const float element = widened(x.values[i]);
    y.values[i] = rounded<To>(add ? widened(y.values[i]) + element : element);
  }
  store<kChunk>(to, y);
}

template <typename Key, typename Packed, int kChunk>
__global__ void __launch_bounds__(kKeyThreads) move_key_chunks(const KeyChunksTask task) {
  // Blocks take the chunks of the given parts in the order of the sequence.
  const int64_t of_chunk = (task.tokens + task.tokens_of_block - 1) / task.tokens_of_block;  // blocks
  const int64_t sequence = blockIdx.x / of_chunk % task.batch, chunk = blockIdx.x / of_chunk / task.batch,
                first = blockIdx.x % of_chunk * task.tokens_of_block;
  const int64_t part = chunk / task.ranks, in_part = chunk % task.ranks,
                rank = (task.first_part + part) % 2 == 0 ? in_part : task.ranks - 1 - in_part;
  const int64_t position = (task.first_part * task.ranks + chunk) * task.tokens + first;
  const int tokens = static_cast<int>(task.tokens - first < task.tokens_of_block ? task.tokens - first
                                                                                 : task.tokens_of_block);
  const int of_head = task.head_dim / kChunk, of_keys = task.heads * of_head;
  for (int unit = static_cast<int>(threadIdx.x); unit < tokens * 2 * of_keys;
       unit += static_cast<int>(blockDim.x)) {
    const int token = unit / (2 * of_keys), of_token = unit % (2 * of_keys),
              head = of_token % of_keys / of_head, at = of_token % of_head * kChunk;
    const bool is_v = of_token >= of_keys;
    const HeadsLayout& keys = is_v ? task.v : task.k;
    Packed* const packed = static_cast<Packed*>(task.chunks.data) + rank * task.next_rank +
                           (is_v ? task.values : 0) +
                           offset_of(task.chunks, part, sequence, first + token, head) + at;
    if (position >= task.length) {
      store<kChunk>(packed, Chunk<Packed, kChunk>{});
      continue;
    }
    Key* const key = static_cast<Key*>(keys.data) + offset_of(keys, 0, sequence, position + token, head) + at;
    if (task.move == KeyMove::kUnpack)
      move_elements<kChunk>(packed, key, /*add=*/false);
    else
      move_elements<kChunk>(key, packed, task.move == KeyMove::kAdd);
  }
}

template <typename Run>
cudaError_t plan(const KeyChunksTask& given, Element element, const Run& run) {
  KeyChunksTask task = given;
  const int whole = task.wide ? chunk_of(Element::kFloat) : chunk_of(element);
  bool chunks = divides(whole, {task.head_dim, task.chunks.part, task.next_rank, task.values});
  for (const HeadsLayout* heads : {&task.k, &task.v, &task.chunks})
    chunks =
        chunks && aligned({heads->data}) && divides(whole, {heads->sequence, heads->position, heads->head});
  const auto alike = variants_of<KeyChunksTask>(
      [](auto x, auto size) { return move_key_chunks<decltype(x), decltype(x), decltype(size)::value>; });
  const Variants<KeyChunksTask> into_floats = {
      move_key_chunks<float, float, 4>, move_key_chunks<float, float, 1>,
      move_key_chunks<__nv_bfloat16, float, 4>, move_key_chunks<__nv_bfloat16, float, 1>};
  const int chunk = chunks ? whole : 1;
  const int64_t of_token = int64_t{2} * task.heads * (task.head_dim / chunk),
                together = int64_t{kKeyThreads} * kUnitsOfKeyThread / of_token;
  task.tokens_of_block = static_cast<int>(together < 1 ? 1 : together < task.tokens ? together : task.tokens);
  const int64_t reached = task.length / task.tokens - task.first_part * task.ranks,
                all = task.parts * task.ranks,
                moved = task.move == KeyMove::kPack || reached > all ? all
                        : reached > 0                                ? reached
                                                                     : 0;
  const int64_t of_chunk = (task.tokens + task.tokens_of_block - 1) / task.tokens_of_block;
  return run((task.wide ? into_floats : alike).of(element, chunk), task, moved * task.batch * of_chunk,
             threads_for(task.tokens_of_block * of_token, kUnitsOfKeyThread, kKeyThreads));
}

}  // namespace hyperion::kernels
