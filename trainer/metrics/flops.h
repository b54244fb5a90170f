// Computes the FLOPs of a token and the peak FLOP/s of a device, for TFLOPs and MFU.
#pragma once

#include <cstdint>
#include <string_view>

#include "models/description.h"

namespace hyperion::metrics {

// Both return forward and backward FLOPs of one token, without recomputation. Only a token's active experts
// count (ParameterCounts::active). Square is torchtitan's formula, 6 * (N - N_embed) + 6 * L * H * (2 *
// head_dim) * S: attention counts all S * S pairs, and a tied head's matmul does not count. `tflops` and
// `mfu(%)` use it. A layer with a window counts twice the pairs inside it, in place of S * S.
double flops_per_token_square(const models::ModelDescription& model, int64_t seq_len);
// Causal counts half the attention pairs, and a tied head's matmul. `mfu_causal(%)` uses it.
double flops_per_token_causal(const models::ModelDescription& model, int64_t seq_len);

struct PeakFlops {
  double flops = 0;   // dense bf16 FLOP/s
  bool known = true;  // false: an unknown device, with the A100's figure as in v0.2.2
};

// Returns the dense bf16 peak for the driver's device name ("NVIDIA H100 80GB HBM3"); case does not matter.
// FP8 runs use the same figure, as in v0.2.2.
PeakFlops gpu_peak_flops(std::string_view device_name);

}  // namespace hyperion::metrics
