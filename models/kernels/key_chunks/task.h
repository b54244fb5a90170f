// What the CUDA kernel of keys' chunks is given.
#pragma once

#include "models/kernels/rope/task.h"

namespace hyperion::kernels {

enum class KeyMove { kPack, kAdd, kUnpack };  // into chunks, to those, or out of them

struct KeyChunksTask {
  KeyMove move = KeyMove::kPack;
  HeadsLayout k, v;    // [batch, length, heads, head_dim]
  HeadsLayout chunks;  // of a rank's keys, and how far it is to
  int64_t next_rank = 0, values = 0;
  bool wide = false;  // chunks are fp32, whatever keys are
  int64_t parts = 0, ranks = 0, batch = 0, tokens = 0;
  int heads = 0, head_dim = 0;
  int64_t first_part = 0, length = 0;
  int tokens_of_block = 0;  // is the plan's
};

cudaError_t launch(const KeyChunksTask& task, Element element, cudaStream_t stream);

}  // namespace hyperion::kernels
