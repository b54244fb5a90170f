// What the CUDA kernels of latent attention's heads are given.
#pragma once

#include "models/kernels/rope/task.h"

namespace hyperion::kernels {

// Layouts of [batch, seq, heads, width]; `shared` has one head. Widths are even, and so are strides.
struct LatentLayouts {
  HeadsLayout q, kv, shared;                          // what is read, or in a backward written
  HeadsLayout queries, keys, v;                       // what is written, or in a backward read
  int heads = 0, plain = 0, rotated = 0, values = 0;  // widths of parts of a head
  int64_t sequences = 0, length = 0;                  // tokens: sequences * length
  const float *cos = nullptr, *sin = nullptr;         // [positions, rotated / 2]
  int64_t positions = 0;                              // length, or sequences * length
  float factor = 1;                                   // of queries
};
struct LatentHeadsTask : LatentLayouts {};
struct LatentHeadsBackwardTask : LatentLayouts {};

cudaError_t launch(const LatentHeadsTask& task, Element element, cudaStream_t stream);
cudaError_t launch(const LatentHeadsBackwardTask& task, Element element, cudaStream_t stream);

}  // namespace hyperion::kernels
