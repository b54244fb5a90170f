// What the CUDA kernels of RoPE are given.
#pragma once

#include "models/kernels/common/launch.h"

namespace hyperion::kernels {

// Heads [tokens, heads, head_dim] of a tensor, a head's elements side by side. Token (sequence, position)
// lies at part * (position / each) + sequence_stride * sequence + position_stride * (position % each).
struct HeadsLayout {
  void* data = nullptr;
  int64_t part = 0, sequence = 0, position = 0, head = 0;  // strides
};

struct RopeTask {
  HeadsLayout q, k, v;              // read; v.data null: values are left alone
  HeadsLayout q_out, k_out, v_out;  // written; may not overlap what is read
  int heads = 0, kv_heads = 0, half = 0;
  int64_t sequences = 0, length = 0;           // tokens: sequences * length
  int64_t each = 0;                            // tokens of a part of a sequence
  const float *cos = nullptr, *sin = nullptr;  // [positions, half]
  int64_t positions = 0;                       // length, or sequences * length
  bool inverse = false, interleaved = false;
};

cudaError_t launch(const RopeTask& task, Element element, cudaStream_t stream);

}  // namespace hyperion::kernels
