// The real device: NCCL, streams and the walk on a GPU, against the CPU.
#include "tests/gpu/gpu.h"

#include <cstdio>

#include <catch2/catch.hpp>

#include <ATen/ATen.h>

#include "models/kernels/attention.h"
#include "tests/distributed/ranks.h"
#include "tests/distributed/tiny_training.h"

namespace hyperion {

TEST_CASE("the walk on one GPU trains to the losses of the CPU") {
  if (gpus() == 0) return;
  const auto on = [](bool gpu) {
    return run_ranks(1,
                     [gpu](const Environment& environment) {
                       if (gpu) use_gpu(0);
                       return train_tiny({.device = gpu ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU)},
                                         environment, 20);
                     })
        .front();
  };
  CHECK(largest_relative_difference(on(true), on(false)) < 1e-4);
}

TEST_CASE("every checkpointing mode and bf16 train on a GPU") {
  if (gpus() == 0) return;
  for (BlockCheckpoint mode :
       {BlockCheckpoint::kNone, BlockCheckpoint::kFull, BlockCheckpoint::kOperations}) {
    const auto values =
        run_ranks(1, [mode](const Environment& environment) {
          use_gpu(0);
          return train_tiny(
              {.compute = at::kBFloat16, .checkpoint = mode, .device = at::Device(at::kCUDA, 0)}, environment,
              20);
        }).front();
    CHECK(values[38] < 0.8 * values[0]);
  }
}

TEST_CASE("FSDP over NCCL trains to the losses of one GPU") {
  const int devices = gpus();
  if (devices == 0) return;
  if (devices < 2) {
    std::printf("skipped: one GPU, and NCCL needs one for each rank\n");
    return;
  }
  const auto on = [](int ranks) {
    return run_ranks(ranks,
                     [](const Environment& environment) {
                       use_gpu(environment.rank);
                       return train_tiny(
                           {.device = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(environment.rank))},
                           environment, 20);
                     })
        .front();
  };
  CHECK(largest_relative_difference(on(2), on(1)) < 1e-4);
}

TEST_CASE("attention backends on a GPU agree with the CPU with and without a mask") {
  if (gpus() == 0) return;
  const auto errors =
      run_ranks(1, [](const Environment&) {
        use_gpu(0);
        at::manual_seed(1);
        const auto make = [](int64_t heads) { return at::randn({2, heads, 64, 64}); };
        const at::Tensor q = make(8), k = make(2), v = make(2), grad = make(8);
        const at::Tensor causal = at::ones({64, 64}, at::kBool).tril().expand({2, 1, 64, 64}).contiguous();
        std::vector<double> result;
        for (at::ScalarType dtype : {at::kFloat, at::kBFloat16})
          for (const at::Tensor& mask : {at::Tensor(), causal}) {
            const auto gpu = [&](const at::Tensor& t) { return t.defined() ? t.to(at::kCUDA) : t; };
            const auto run = [&](auto&& place) {
              const at::Tensor a = place(q.to(dtype)), b = place(k.to(dtype)), c = place(v.to(dtype)),
                               m = place(mask);
              const auto forward = kernels::attention_forward(a, b, c, m);
              const auto back = kernels::attention_backward(place(grad.to(dtype)), a, b, c, m, forward);
              return std::vector<at::Tensor>{forward.output, back.q, back.k, back.v};
            };
            const auto ours = run(gpu), reference = run([](const at::Tensor&t) { return t; });
            for (size_t i = 0; i < ours.size(); ++i)
              result.push_back(
                  (ours[i].to(at::kCPU, at::kFloat) - reference[i].to(at::kFloat)).norm().item<double>() /
                  reference[i].to(at::kFloat).norm().item<double>() / (dtype == at::kFloat ? 1e-4 : 2e-2));
          }
        return result;
      }).front();
  for (double error : errors) CHECK(error < 1.0);
}

}  // namespace hyperion
