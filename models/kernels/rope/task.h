// The arguments of the RoPE CUDA kernels.
#pragma once

#include "models/kernels/common/launch.h"

namespace hyperion::kernels {

// The layout of heads [tokens, heads, head_dim]; the elements of a head are contiguous. Token (s, p) is at
// offset part * (p / each) + sequence * s + position * (p % each).
struct HeadsLayout {
  void* data = nullptr;
  int64_t part = 0, sequence = 0, position = 0, head = 0;  // strides
};

struct RopeTask {
  HeadsLayout q, k, v;              // inputs; v.data null: values are not copied
  HeadsLayout q_out, k_out, v_out;  // outputs; they must not overlap the inputs
  int heads = 0, kv_heads = 0, half = 0;
  int64_t sequences = 0, length = 0;           // tokens: sequences * length
  int64_t each = 0;                            // tokens of a part of a sequence
  const float *cos = nullptr, *sin = nullptr;  // [positions, half]
  int64_t positions = 0;                       // length, or sequences * length
  bool inverse = false, interleaved = false;
};

cudaError_t launch(const RopeTask& task, Element element, cudaStream_t stream);

}  // namespace hyperion::kernels
