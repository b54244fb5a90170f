// The arguments of the CUDA kernel of key chunks.
#pragma once

#include "models/kernels/rope/task.h"

namespace hyperion::kernels {

enum class KeyMove { kPack, kAdd, kUnpack };  // copy to chunks, add to chunks, copy from chunks

struct KeyChunksTask {
  KeyMove move = KeyMove::kPack;
  HeadsLayout k, v;                   // [batch, length, heads, head_dim]
  HeadsLayout chunks;                 // the first rank's keys
  int64_t next_rank = 0, values = 0;  // strides in chunks: between ranks, and from keys to values
  bool wide = false;                  // whether chunks are fp32 for keys of any dtype
  int64_t parts = 0, ranks = 0, batch = 0, tokens = 0;
  int heads = 0, head_dim = 0;
  int64_t first_part = 0, length = 0;
  int tokens_of_block = 0;  // set by plan()
};

cudaError_t launch(const KeyChunksTask& task, Element element, cudaStream_t stream);

}  // namespace hyperion::kernels
