// The operators of models/kernels/operators.h for CUDA tensors.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "models/kernels/common/tensors.h"

namespace hyperion::kernels {
namespace {

// What models/kernels/common/tensors.h launches with: the current stream of the first tensor's device.
struct OnCurrentStream {
  template <typename Task>
  void operator()(const Task& task, Element element) const {
    C10_CUDA_CHECK(launch(task, element, c10::cuda::getCurrentCUDAStream().stream()));
  }
};

// Tensor(arguments...) of models/kernels/common/tensors.h as an operator.
template <auto kFunction>
struct OnCuda;
template <typename Result, typename First, typename... Others,
          Result (*kFunction)(const OnCurrentStream&, First, Others...)>
struct OnCuda<kFunction> {
  static Result run(First first, Others... others) {
    const c10::cuda::CUDAGuard on(first.device());
    return kFunction(OnCurrentStream{}, first, others...);
  }
};

TORCH_LIBRARY_IMPL(hyperion, CUDA, library) {
  library.impl("rope_heads", OnCuda<on_tensors::rope_heads<OnCurrentStream>>::run);
  library.impl("rope_heads_backward", OnCuda<on_tensors::rope_heads_backward<OnCurrentStream>>::run);
  library.impl("swiglu", OnCuda<on_tensors::swiglu<OnCurrentStream>>::run);
  library.impl("swiglu_backward", OnCuda<on_tensors::swiglu_backward<OnCurrentStream>>::run);
  library.impl("add_rms_norm", OnCuda<on_tensors::add_rms_norm<OnCurrentStream>>::run);
  library.impl("add_rms_norm_backward", OnCuda<on_tensors::add_rms_norm_backward<OnCurrentStream>>::run);
  library.impl("cross_entropy_", OnCuda<on_tensors::cross_entropy<OnCurrentStream>>::run);
  library.impl("vocab_statistics", OnCuda<on_tensors::vocab_statistics<OnCurrentStream>>::run);
  library.impl("vocab_gradient_", OnCuda<on_tensors::vocab_gradient<OnCurrentStream>>::run);
}

}  // namespace
}  // namespace hyperion::kernels
