// Optimizer states in bf16 on a GPU: the compiled kernel's bits are the CPU's.
// tests/unit/models/rounded_states_test.cpp has the same without a GPU.
#include <catch2/catch.hpp>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "models/kernels/kernels.h"
#include "tests/gpu/gpu.h"
#include "tests/support/ranks.h"

namespace hyperion {
namespace {

kernels::RoundedAdamTensors updated_on(at::Device device) {
  at::manual_seed(12);
  kernels::RoundedAdamTensors tensors;
  for (const int64_t rows : {1, 30, 700}) {
    const Box box{{1, 3}, {rows, 50}};
    const auto random = [&] { return at::randn({rows * 50}).to(device); };
    tensors.weights.push_back(random());
    tensors.grads.push_back(random());
    tensors.exp_avgs.push_back(random().to(at::kBFloat16));
    tensors.exp_avg_sqs.push_back(random().abs().to(at::kBFloat16));
    tensors.copies.push_back(random().to(at::kBFloat16));
    tensors.keys.push_back(static_cast<uint64_t>(rows));
    tensors.indices.push_back(kernels::indices_of({rows + 2, rows == 30 ? 64 : 53}, box));
  }
  const at::TensorOptions options = at::TensorOptions(at::kFloat).device(device);
  kernels::table().rounded_adam({.lr = 1e-2,
                                 .beta1 = 0.9,
                                 .beta2 = 0.95,
                                 .eps = 1e-8,
                                 .weight_decay = 0.1,
                                 .decoupled = true,
                                 .updates = at::full({}, 3.0, options),
                                 .skip = at::zeros({}, options),
                                 .divisor = at::full({}, 1.5, options)},
                                tensors);
  return tensors;
}

}  // namespace

TEST_CASE("optimizer states in bf16 on a GPU have the CPU's bits") {
  if (gpus() == 0) return;
  const int equal = run_one_rank([](const parallel::Environment&) {
    use_gpu(0);
    const kernels::RoundedAdamTensors there = updated_on(at::kCUDA), here = updated_on(at::kCPU);
    int same = 0;
    for (size_t i = 0; i < here.weights.size(); ++i)
      for (const auto list :
           {&kernels::RoundedAdamTensors::weights, &kernels::RoundedAdamTensors::exp_avgs,
            &kernels::RoundedAdamTensors::exp_avg_sqs, &kernels::RoundedAdamTensors::copies})
        same += (there.*list)[i].cpu().equal((here.*list)[i]) ? 1 : 0;
    return same;
  });
  CHECK(equal == 12);
}

}  // namespace hyperion
