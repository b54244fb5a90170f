// The real device: NCCL, streams and training steps on a GPU, against the CPU.
#include "tests/gpu/gpu.h"

#include <cmath>
#include <cstdio>

#include <catch2/catch.hpp>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>

#include "models/kernels/attention/attention.h"
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
              for (const at::Tensor& gradients : group->local_gradients().divided)
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
              here.shard_alignment = parallel::kGpuShardAlignment;
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
                               .shard_alignment = parallel::kGpuShardAlignment,
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

namespace {

// Relative errors of output and gradients on the GPU over what the dtype allows, against fp32 on the CPU.
struct AttentionCase {
  int64_t seq, head_dim;
  bool documents, deterministic;
  at::ScalarType dtype;
};

std::vector<double> attention_errors(const AttentionCase& c) {
  at::manual_seed(1);
  at::globalContext().setDeterministicAlgorithms(c.deterministic, /*warn_only=*/false);
  // As the model makes them: [batch, seq, heads, head_dim], transposed.
  const auto make = [&](int64_t heads) {
    return at::randn({2, c.seq, heads, c.head_dim}).to(c.dtype).transpose(1, 2);
  };
  const at::Tensor q = make(8), k = make(2), v = make(2), grad = make(8);
  // two documents
  const at::Tensor positions = at::cat({at::arange(c.seq / 3), at::arange(c.seq - c.seq / 3)})
                                   .to(at::kInt)
                                   .expand({2, c.seq})
                                   .contiguous();
  const auto run = [&](auto&& place) {
    const at::Tensor a = place(q), b = place(k), d = place(v);
    const auto documents =
        c.documents ? kernels::documents_from(positions, a.device()) : kernels::Documents();
    const auto forward = kernels::attention_forward(a, b, d, documents);
    const auto back = kernels::attention_backward(place(grad), a, b, d, documents, forward);
    return std::vector<at::Tensor>{forward.output, back.q, back.k, back.v};
  };
  const auto ours = run([](const at::Tensor&t) { return t.to(at::kCUDA); }),
             again = run([](const at::Tensor&t) { return t.to(at::kCUDA); }),
             reference = run([](const at::Tensor&t) { return t.to(at::kFloat); });
  std::vector<double> errors;
  for (size_t i = 0; i < ours.size(); ++i) {
    const at::Tensor found = ours[i].to(at::kCPU, at::kFloat);
    // A gradient may be zero (one position attends to itself alone): then what remains of it is measured
    // against the gradient that came in.
    const double scale = std::max(reference[i].norm().item<double>(), 1e-2 * grad.norm().item<double>());
    const double error = (found - reference[i]).norm().item<double>() / scale;
    errors.push_back(std::isnan(error) ? INFINITY : error / (c.dtype == at::kFloat ? 1e-4 : 2e-2));
    if (c.deterministic && !ours[i].equal(again[i])) errors.push_back(1e9);
  }
  return errors;
}

}  // namespace

TEST_CASE("attention on a GPU agrees with the CPU for every kernel and head size and length") {
  if (gpus() == 0) return;
  std::vector<AttentionCase> cases;
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const auto& [seq, head_dim] : std::vector<std::pair<int64_t, int64_t>>{
             {64, 64}, {8, 6}, {1, 16}, {50, 16}, {256, 128}, {100, 128}, {64, 192}, {64, 320}})
      for (bool documents : {false, true})
        for (bool deterministic : {false, true})
          cases.push_back({seq, head_dim, documents, deterministic, dtype});
  // A case that throws has the error 1e6, and its message is in the test's output.
  const auto worst = run_one_rank(
      [&cases](const parallel::Environment&) {
        use_gpu(0);
        std::vector<double> results;
        for (const AttentionCase& c : cases) try {
            results.push_back(std::ranges::max(attention_errors(c)));
          } catch (const std::exception& error) {
            std::printf("%s\n", error.what());
            results.push_back(1e6);
          }
        return results;
      },
      kGpuTimeout);
  for (size_t i = 0; i < cases.size(); ++i) {
    const AttentionCase& c = cases[i];
    CAPTURE(c.dtype, c.seq, c.head_dim, c.documents, c.deterministic);
    CHECK(worst.at(i) < 1.0);
  }
}

}  // namespace hyperion
