// The table of all kernels except attention (models/kernels/attention/attention.h). Each row has the forms of
// one kernel; the form is chosen before the model is made.
#pragma once

#include "models/kernels/adam/adam.h"
#include "models/kernels/adam/rounded.h"
#include "models/kernels/clamped_gate/clamped_gate.h"
#include "models/kernels/cross_entropy/cross_entropy.h"
#include "models/kernels/expert_rows/expert_rows.h"
#include "models/kernels/gated_activation/gated_activation.h"
#include "models/kernels/group_bias/group_bias.h"
#include "models/kernels/kernel.h"
#include "models/kernels/key_chunks/key_chunks.h"
#include "models/kernels/latent_heads/latent_heads.h"
#include "models/kernels/matmul/matmul.h"
#include "models/kernels/merge_parts/merge_parts.h"
#include "models/kernels/packed_sums/packed_sums.h"
#include "models/kernels/rms_norm/rms_norm.h"
#include "models/kernels/rope/rope.h"
#include "models/kernels/router/router.h"
#include "models/kernels/sum_of_squares/sum_of_squares.h"

namespace hyperion::kernels {

struct Kernels {
  Kernel<RmsNorm> rms_norm;
  Kernel<RmsNormBackward> rms_norm_backward;
  Kernel<AddRmsNorm> add_rms_norm;
  Kernel<AddRmsNormBackward> add_rms_norm_backward;
  Kernel<RopeHeads> rope_heads, rope_heads_backward;
  Kernel<GatedActivation> gated_activation;
  Kernel<GatedActivationBackward> gated_activation_backward;
  Kernel<ClampedGate> clamped_gate;
  Kernel<ClampedGateBackward> clamped_gate_backward;
  Kernel<LatentHeads> latent_heads;
  Kernel<LatentHeadsBackward> latent_heads_backward;
  Kernel<PackKeys> pack_keys, add_keys;
  Kernel<UnpackKeys> unpack_keys;
  Kernel<MergeParts> merge_parts;
  Kernel<RouteTokens> route_tokens;
  Kernel<RoutingWeights> routing_weights;
  Kernel<RoutingWeightsBackward> routing_weights_backward;
  Kernel<OrderRows> order_rows;
  Kernel<GatherRows> gather_rows;
  Kernel<SumRows> sum_rows;
  Kernel<ProductsOfRows> products_of_rows;
  Kernel<WeightRows> weight_rows;
  Kernel<AddGroupBias> add_group_bias;
  Kernel<SumGroups> sum_groups;
  Kernel<PackRowSums> pack_row_sums;
  Kernel<SumPackedRows> sum_packed_rows;
  Kernel<CrossEntropy> cross_entropy;
  Kernel<VocabStatistics> vocab_statistics;
  Kernel<VocabGradient> vocab_gradient;
  Kernel<SumOfSquares> sum_of_squares;
  // These kernels update bf16 optimizer states; the log does not list them.
  Kernel<RoundedAdam> rounded_adam;
  Kernel<RoundedMomentum> rounded_momentum;
  // These two have a CPU form only; null: libtorch's is used.
  AdamUpdate* adam_update = nullptr;
  cpu::Matmul* cpu_matmul = nullptr;
};

// Returns the table of the process. It has none of our GPU kernels before choose_kernels().
const Kernels& table();

// kAuto: the fused form of each kernel if the device has one. kPlain: the plain forms.
enum class KernelChoice { kAuto, kPlain };
// The titles of the kernels whose form on a device is libtorch's fused one, ours, or the plain one.
struct KernelForms {
  std::vector<std::string> libtorchs, ours, plain;
};
// Makes the table of the process and returns the forms for `device`. kCUDA loads the library of GPU kernels.
// Must not be called while kernels run.
KernelForms choose_kernels(KernelChoice choice, at::DeviceType device = at::kCPU);

}  // namespace hyperion::kernels
