// The real device: NCCL, streams and training steps on a GPU, against the CPU.
#include "tests/gpu/gpu.h"

#include <catch2/catch.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include "models/kernels/kernels.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"

namespace hyperion {

TEST_CASE("one GPU trains to the losses of the CPU") {
  if (gpus() == 0) return;
  const auto on = [](bool gpu) {
    return run_one_rank(
        [gpu](const parallel::Environment& environment) {
          if (gpu) use_gpu(0);
          return train_tiny({.device = gpu ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU)}, environment,
                            20);
        },
        kGpuTimeout);
  };
  const double difference = largest_difference(on(true), on(false));
  CAPTURE(difference);
  CHECK(difference < 1e-4);
}

TEST_CASE("every checkpointing mode and bf16 train on a GPU") {
  if (gpus() == 0) return;
  for (models::ActivationCheckpoint mode :
       {models::ActivationCheckpoint::kNone, models::ActivationCheckpoint::kFull,
        models::ActivationCheckpoint::kSelectiveOp, models::ActivationCheckpoint::kElementwise}) {
    const auto trained = run_one_rank(
        [mode](const parallel::Environment& environment) {
          use_gpu(0);
          return train_tiny(
              {.compute = at::kBFloat16, .checkpoint = mode, .device = at::Device(at::kCUDA, 0)}, environment,
              20);
        },
        kGpuTimeout);
    CHECK(trained.back().loss < 0.8 * trained.front().loss);
  }
}

TEST_CASE("gradients of blocks with experts on a GPU keep their bits where the blocks are run again") {
  if (gpus() == 0) return;
  for (const char* model : {"qwen3_moe", "deepseek_v3"}) {
    const auto gradients = [model](models::ActivationCheckpoint mode) {
      return run_one_rank(
          [model, mode](const parallel::Environment& environment) {
            use_gpu(0);
            return TinyTraining({.model = model, .checkpoint = mode, .device = at::Device(at::kCUDA, 0)},
                                environment)
                .first_gradients();
          },
          kGpuTimeout);
    };
    const bool equal =
        gradients(models::ActivationCheckpoint::kNone) == gradients(models::ActivationCheckpoint::kFull);
    CAPTURE(model);
    CHECK(equal);
  }
}

TEST_CASE("a GPU holds memory of gradients from their first sum to the update alone") {
  if (gpus() == 0) return;
  for (const int64_t accumulation : {1, 2}) {
    const std::vector<int64_t> held = run_one_rank(
        [accumulation](const parallel::Environment& environment) {
          use_gpu(0);
          TinyTraining training({.accumulation = accumulation, .device = at::Device(at::kCUDA, 0)},
                                environment);
          std::vector<int64_t> bytes;
          const auto count = [&] {
            int64_t sum = 0;
            for (const auto& group : training.stage().groups())
              for (const at::Tensor& gradients : group->local_gradients().tp_sharded)
                sum += static_cast<int64_t>(gradients.storage().nbytes());
            bytes.push_back(sum);
          };
          count();
          training.first_gradients();
          count();
          training.step(0);
          count();
          return bytes;
        },
        kGpuTimeout);
    CHECK(held[0] == 0);
    CHECK(held[1] > 0);
    CHECK(held[2] == 0);
  }
}

TEST_CASE("FSDP over NCCL trains to the losses of one GPU") {
  if (gpus(2) < 2) return;
  const auto on = [](int ranks) {
    return run_ranks(
               ranks,
               [](const parallel::Environment& environment) {
                 use_gpu(environment.rank);
                 return train_tiny(
                     {.device = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(environment.rank))},
                     environment, 20);
               },
               kGpuTimeout)
        .front();
  };
  CHECK(largest_difference(on(2), on(1)) < 1e-4);
}

TEST_CASE("a rank of four that talks to nobody gives the numbers of the CPU whatever runs ahead") {
  if (gpus() == 0) return;
  // In bf16 gradients of matrices whose rows four ranks divide are reduced from where their products leave
  // them.
  struct Case {
    at::ScalarType compute;
    bool reshard;
    bool once = false;  // added up there over microbatches, too
    const char* model = "llama3";
  };
  for (const auto& [compute, reshard, once, model] :
       {Case{at::kFloat, false}, Case{at::kFloat, true}, Case{at::kBFloat16, false},
        Case{at::kBFloat16, true}, Case{at::kFloat, true, true}, Case{at::kBFloat16, true, true},
        Case{at::kBFloat16, false, true, "qwen3"}}) {
    TinyJob job{.model = model,
                .compute = compute,
                .reshard_after_forward = reshard,
                .accumulation = once ? 3 : 1,
                .reduce_once = once,
                .pack_weights = compute == at::kBFloat16,
                .fake = true};
    job.mesh.dp_shard = 4;
    const auto on = [&](bool gpu) {
      return run_one_rank(
          [job, gpu](parallel::Environment environment) {
            TinyJob here = job;
            if (gpu) {
              use_gpu(0);
              here.device = at::Device(at::kCUDA, 0);
            }
            environment.world_size = 4;
            return train_tiny(here, environment, 20);
          },
          kGpuTimeout);
    };
    const double difference = largest_difference(on(true), on(false));
    CAPTURE(compute, reshard, once, model, difference);
    CHECK(difference < (compute == at::kFloat ? 1e-4 : 2e-2));
  }
}

TEST_CASE("every shard on a GPU begins at 16 bytes") {
  if (gpus() == 0) return;
  const int64_t elsewhere = run_one_rank(
      [](parallel::Environment environment) {
        use_gpu(0);
        environment.world_size = 4;
        TinyTraining training({.model = "qwen3",
                               .mesh = {.dp_shard = 4},
                               .compute = at::kBFloat16,
                               .device = at::Device(at::kCUDA, 0),
                               .fake = true},
                              environment);
        training.first_gradients();
        int64_t found = 0;
        for (const parallel::ShardedParameterPtr& parameter : training.stage().parameters())
          for (const at::Tensor& tensor : {parameter->master(), parameter->compute_shard(), parameter->grad(),
                                           parameter->all_gather_input()})
            found += reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 16 != 0 ? 1 : 0;
        return found;
      },
      kGpuTimeout);
  CHECK(elsewhere == 0);
}

TEST_CASE("state on the host trains to the losses of state on the GPU") {
  if (gpus() == 0) return;
  for (at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    const auto with = [&](bool offload) {
      return run_one_rank(
          [compute, offload](const parallel::Environment& environment) {
            use_gpu(0);
            return train_tiny({.compute = compute, .device = at::Device(at::kCUDA, 0), .offload = offload},
                              environment, 20);
          },
          kGpuTimeout);
    };
    const double difference = largest_difference(with(true), with(false));
    CAPTURE(compute, difference);
    CHECK(difference < (compute == at::kFloat ? 1e-4 : 2e-2));
  }
}

TEST_CASE("a GPU trains with fused kernels to the losses of plain ones") {
  if (gpus() == 0) return;
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    const auto with = [&](kernels::KernelChoice choice) {
      return run_one_rank(
          [compute, choice](const parallel::Environment& environment) {
            use_gpu(0);
            kernels::choose_kernels(choice, at::kCUDA);
            return train_tiny({.compute = compute, .device = at::Device(at::kCUDA, 0)}, environment, 20);
          },
          kGpuTimeout);
    };
    const double difference =
        largest_difference(with(kernels::KernelChoice::kAuto), with(kernels::KernelChoice::kPlain));
    CAPTURE(compute, difference);
    CHECK(difference < (compute == at::kFloat ? 1e-4 : 0.02));
  }
}

}  // namespace hyperion
