// The GPU's column of the table in models/kernels/kernels.h.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "models/kernels/adam/cuda.h"
#include "models/kernels/clamped_gate/cuda.h"
#include "models/kernels/cross_entropy/cuda.h"
#include "models/kernels/expert_rows/cuda.h"
#include "models/kernels/gated_activation/cuda.h"
#include "models/kernels/group_bias/cuda.h"
#include "models/kernels/kernels.h"
#include "models/kernels/key_chunks/cuda.h"
#include "models/kernels/latent_heads/cuda.h"
#include "models/kernels/merge_parts/cuda.h"
#include "models/kernels/packed_sums/cuda.h"
#include "models/kernels/rms_norm/cuda.h"
#include "models/kernels/rope/cuda.h"
#include "models/kernels/router/cuda.h"

namespace hyperion::kernels {
namespace {

// Launches on the current stream.
struct OnCurrentStream {
  template <typename Task>
  void operator()(const Task& task, Element element) const {
    C10_CUDA_CHECK(launch(task, element, c10::cuda::getCurrentCUDAStream().stream()));
  }
};

// A function of a cuda.h as a form of a kernel: on the device of its first tensor.
template <auto kFunction>
struct OnCuda;
template <typename Result, typename... Arguments, Result (*kFunction)(const OnCurrentStream&, Arguments...)>
struct OnCuda<kFunction> {
  static Result run(Arguments... arguments) {
    const c10::cuda::CUDAGuard on(first_tensor(std::get<0>(std::tie(arguments...))).device());
    return kFunction(OnCurrentStream{}, arguments...);
  }
};

}  // namespace

void add_cuda_kernels(Kernels& table) {
  table.add_rms_norm.cuda = OnCuda<cuda::add_rms_norm<OnCurrentStream>>::run;
  table.add_rms_norm_backward.cuda = OnCuda<cuda::add_rms_norm_backward<OnCurrentStream>>::run;
  table.rope_heads.cuda = OnCuda<cuda::rope_heads<OnCurrentStream>>::run;
  table.rope_heads_backward.cuda = OnCuda<cuda::rope_heads_backward<OnCurrentStream>>::run;
  table.gated_activation.cuda = OnCuda<cuda::gated_activation<OnCurrentStream>>::run;
  table.gated_activation_backward.cuda = OnCuda<cuda::gated_activation_backward<OnCurrentStream>>::run;
  table.clamped_gate.cuda = OnCuda<cuda::clamped_gate<OnCurrentStream>>::run;
  table.clamped_gate_backward.cuda = OnCuda<cuda::clamped_gate_backward<OnCurrentStream>>::run;
  table.add_group_bias.cuda = OnCuda<cuda::add_group_bias<OnCurrentStream>>::run;
  table.sum_groups.cuda = OnCuda<cuda::sum_groups<OnCurrentStream>>::run;
  table.latent_heads.cuda = OnCuda<cuda::latent_heads<OnCurrentStream>>::run;
  table.latent_heads_backward.cuda = OnCuda<cuda::latent_heads_backward<OnCurrentStream>>::run;
  table.pack_keys.cuda = OnCuda<cuda::pack_keys<OnCurrentStream>>::run;
  table.add_keys.cuda = OnCuda<cuda::add_keys<OnCurrentStream>>::run;
  table.unpack_keys.cuda = OnCuda<cuda::unpack_keys<OnCurrentStream>>::run;
  table.merge_parts.cuda = OnCuda<cuda::merge_parts<OnCurrentStream>>::run;
  table.route_tokens.cuda = OnCuda<cuda::route_tokens<OnCurrentStream>>::run;
  table.routing_weights.cuda = OnCuda<cuda::routing_weights<OnCurrentStream>>::run;
  table.routing_weights_backward.cuda = OnCuda<cuda::routing_weights_backward<OnCurrentStream>>::run;
  table.order_rows.cuda = OnCuda<cuda::order_rows<OnCurrentStream>>::run;
  table.gather_rows.cuda = OnCuda<cuda::gather_rows<OnCurrentStream>>::run;
  table.sum_rows.cuda = OnCuda<cuda::sum_rows<OnCurrentStream>>::run;
  table.products_of_rows.cuda = OnCuda<cuda::products_of_rows<OnCurrentStream>>::run;
  table.weight_rows.cuda = OnCuda<cuda::weight_rows<OnCurrentStream>>::run;
  table.pack_row_sums.cuda = OnCuda<cuda::pack_row_sums<OnCurrentStream>>::run;
  table.sum_packed_rows.cuda = OnCuda<cuda::sum_packed_rows<OnCurrentStream>>::run;
  table.cross_entropy.cuda = OnCuda<cuda::cross_entropy<OnCurrentStream>>::run;
  table.vocab_statistics.cuda = OnCuda<cuda::vocab_statistics<OnCurrentStream>>::run;
  table.rounded_adam.cuda = OnCuda<cuda::rounded_adam<OnCurrentStream>>::run;
  table.rounded_momentum.cuda = OnCuda<cuda::rounded_momentum<OnCurrentStream>>::run;
  table.vocab_gradient.cuda = OnCuda<cuda::vocab_gradient<OnCurrentStream>>::run;
}

}  // namespace hyperion::kernels
