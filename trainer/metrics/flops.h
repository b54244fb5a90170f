// FLOPs of a token and peak FLOP/s of a device: the two numbers behind TFLOPs and MFU.
#pragma once

#include <cstdint>
#include <string_view>

#include "models/description.h"

namespace hyperion::metrics {

// Forward and backward FLOPs of one token, without recomputation.
// Of experts only those of one token count (ParameterCounts::active).
// Square: torchtitan's formula, 6 * (N - N_embed) + 6 * L * H * (2 * head_dim) * S. Attention is charged for
// all S * S pairs, and a tied head's matmul is left out, as there. Behind `tflops` and `mfu(%)`.
double flops_per_token_square(const models::ModelDescription& model, int64_t seq_len);
// Causal: what a causal model needs: half the attention pairs, and a tied head's matmul counted. Behind
// `mfu_causal(%)`.
double flops_per_token_causal(const models::ModelDescription& model, int64_t seq_len);

struct PeakFlops {
  double flops = 0;   // dense bf16 FLOP/s
  bool known = true;  // false: the device is not in the table and got the A100's figure, as in v0.2.2
};

// Dense bf16 peak by the device name that the driver reports ("NVIDIA H100 80GB HBM3"), compared without
// case. FP8 runs are measured against the same figure, as in v0.2.2.
PeakFlops gpu_peak_flops(std::string_view device_name);

}  // namespace hyperion::metrics
