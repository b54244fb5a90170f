// The arguments of the CUDA kernels of latent attention's heads.
#pragma once

#include "models/kernels/rope/task.h"

namespace hyperion::kernels {

// Tensors are [batch, seq, heads, width]; `shared` has one head. Widths and strides are even.
struct LatentLayouts {
  HeadsLayout q, kv, shared;                          // inputs; in backward their gradients, the outputs
  HeadsLayout queries, keys, v;                       // outputs; in backward their gradients, the inputs
  int heads = 0, plain = 0, rotated = 0, values = 0;  // the number of heads, and widths
  int value_width = 0;                                // of v: values and the zeros behind them
  int64_t sequences = 0, length = 0;                  // tokens: sequences * length
  const float *cos = nullptr, *sin = nullptr;         // [positions, rotated / 2]
  int64_t positions = 0;                              // length, or sequences * length
  float factor = 1;                                   // multiplies queries
};
struct LatentHeadsTask : LatentLayouts {};
struct LatentHeadsBackwardTask : LatentLayouts {};

cudaError_t launch(const LatentHeadsTask& task, Element element, cudaStream_t stream);
cudaError_t launch(const LatentHeadsBackwardTask& task, Element element, cudaStream_t stream);

}  // namespace hyperion::kernels
