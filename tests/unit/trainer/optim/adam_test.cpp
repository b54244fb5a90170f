// Our Adam and AdamW against torch::optim, every implementation, and the masked update.
#include "trainer/optim/adam.h"

#include <catch2/catch.hpp>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include "tests/support/placements.h"

namespace hyperion::optim {

using at::Tensor;
using Implementation = config::OptimizerImplementation;

namespace {

struct Shards {
  explicit Shards(at::ScalarType compute) {
    at::manual_seed(11);
    for (int64_t rows : {5, 3}) {
      auto parameter = make_parameter("p" + std::to_string(rows), {rows, 4}, Init::ones());
      const parallel::ShardingOptions options{.compute_dtype = compute};
      all.push_back(std::make_shared<parallel::ShardedParameter>(parameter, test::cut_by_rows(1), options));
      grads.push_back(at::zeros({rows * 4}));
      all.back()->bind_grad(grads.back());
      all.back()->master().copy_(at::randn({rows, 4}));
    }
  }
  void set_grads(int step) {
    at::manual_seed(100 + step);
    for (Tensor& grad : grads) grad.copy_(at::randn_like(grad));
  }
  std::vector<parallel::ShardedParameterPtr> all;
  std::vector<Tensor> grads;
};

const Tensor kGo = at::zeros({}), kSkip = at::ones({});

}  // namespace

TEST_CASE("the update in one pass equals libtorch's for any number of elements and threads") {
  const config::OptimizerName name = GENERATE(config::OptimizerName::kAdamW, config::OptimizerName::kAdam);
  const auto compute = GENERATE(at::kFloat, at::kBFloat16);
  const double beta1 = GENERATE(0.9, 0.0);
  struct Job {
    Job(config::OptimizerName name, at::ScalarType compute, double beta1, Implementation implementation) {
      at::manual_seed(31);
      for (const std::vector<int64_t>& shape :
           std::vector<std::vector<int64_t>>{{1, 1}, {3, 7}, {16384}, {5, 6561}, {0, 4}, {129, 1000}}) {
        auto parameter = make_parameter("p" + std::to_string(all.size()), shape, Init::ones());
        all.push_back(std::make_shared<parallel::ShardedParameter>(
            parameter, test::cut_by_rows(1), parallel::ShardingOptions{.compute_dtype = compute}));
        grads.push_back(at::zeros({parameter->numel()}));
        all.back()->bind_grad(grads.back());
        all.back()->master().copy_(at::randn(shape));
      }
      adam.emplace(all,
                   config::JobConfig::Optimizer{
                       .name = name, .beta1 = beta1, .weight_decay = 0.1, .implementation = implementation});
    }
    std::vector<parallel::ShardedParameterPtr> all;
    std::vector<Tensor> grads;
    std::optional<Adam> adam;
  };
  Job ours(name, compute, beta1, Implementation::kFused), again(name, compute, beta1, Implementation::kFused),
      theirs(name, compute, beta1, Implementation::kForeach);
  const int threads = at::get_num_threads();
  for (int step = 0; step < 3; ++step) {
    for (Job* job : {&ours, &again, &theirs}) {
      at::manual_seed(50 + step);
      for (Tensor& grad : job->grads) grad.copy_(at::randn_like(grad) * 0.1);
      at::set_num_threads(job == &again ? 3 : 1);
      job->adam->step(1e-2, step == 1 ? kSkip : kGo);
    }
    for (size_t i = 0; i < ours.all.size(); ++i) {
      CAPTURE(step, i);
      CHECK(at::allclose(ours.all[i]->master(), theirs.all[i]->master(), 1e-5, 1e-6));
      CHECK(at::allclose(ours.adam->states(i)[0], theirs.adam->states(i)[0], 1e-5, 1e-7));
      CHECK(at::allclose(ours.adam->states(i)[1], theirs.adam->states(i)[1], 1e-5, 1e-8));
      CHECK(ours.all[i]->compute_shard().equal(ours.all[i]->master().to(compute)));
      CHECK(ours.all[i]->master().equal(again.all[i]->master()));
    }
  }
  at::set_num_threads(threads);
}

TEST_CASE("the fused update divides gradients in its own pass") {
  const config::OptimizerName name = GENERATE(config::OptimizerName::kAdamW, config::OptimizerName::kAdam);
  Shards divided(at::kBFloat16), divides(at::kBFloat16);
  Adam first(divided.all, {.name = name}), second(divides.all, {.name = name});
  CHECK(second.divides_gradients());
  CHECK_FALSE(Adam(divides.all, {.implementation = Implementation::kForeach}).divides_gradients());
  for (int step = 0; step < 3; ++step) {
    divided.set_grads(step);
    divides.set_grads(step);
    for (Tensor& grad : divided.grads) grad.div_(2.5);
    first.step(1e-2, kGo);
    second.step(1e-2, kGo, at::full({}, 2.5, at::kDouble));  // a norm on a CPU is fp64
    for (size_t i = 0; i < divided.all.size(); ++i) {
      CHECK(at::allclose(divides.all[i]->master(), divided.all[i]->master(), 1e-6, 1e-7));
      CHECK(at::allclose(second.states(i)[0], first.states(i)[0], 1e-6, 1e-7));
    }
  }
}

TEST_CASE("AdamW and Adam equal torch in every implementation") {
  const config::OptimizerName name = GENERATE(config::OptimizerName::kAdamW, config::OptimizerName::kAdam);
  const Implementation implementation =
      GENERATE(Implementation::kFused, Implementation::kForeach, Implementation::kForLoop);
  Shards shards(at::kFloat);
  std::vector<Tensor> reference;
  for (const auto& shard : shards.all) reference.push_back(shard->master().clone().requires_grad_());
  Adam ours(shards.all, {.name = name, .weight_decay = 0.1, .implementation = implementation});
  std::unique_ptr<torch::optim::Optimizer> theirs;
  if (name == config::OptimizerName::kAdamW)
    theirs = std::make_unique<torch::optim::AdamW>(
        reference, torch::optim::AdamWOptions(1e-2).betas({0.9, 0.95}).eps(1e-8).weight_decay(0.1));
  else
    theirs = std::make_unique<torch::optim::Adam>(
        reference, torch::optim::AdamOptions(1e-2).betas({0.9, 0.95}).eps(1e-8).weight_decay(0.1));
  for (int step = 0; step < 5; ++step) {
    shards.set_grads(step);
    for (size_t i = 0; i < reference.size(); ++i) reference[i].mutable_grad() = shards.all[i]->grad().clone();
    theirs->step();
    ours.step(1e-2, kGo);
    for (size_t i = 0; i < reference.size(); ++i)
      CHECK(at::allclose(shards.all[i]->master(), reference[i], 1e-5, 1e-6));
  }
  CHECK(ours.step_count().item<float>() == 5);
}

TEST_CASE("foreach and for-loop update to the same bits") {
  const config::OptimizerName name = GENERATE(config::OptimizerName::kAdamW, config::OptimizerName::kAdam);
  const auto weights_after = [&](Implementation implementation) {
    Shards shards(at::kFloat);
    Adam adam(shards.all, {.name = name, .implementation = implementation});
    for (int step = 0; step < 5; ++step) {
      shards.set_grads(step);
      adam.step(1e-2, step == 2 ? kSkip : kGo);
    }
    return at::cat({shards.all[0]->master().flatten(), shards.all[1]->master().flatten()});
  };
  CHECK(weights_after(Implementation::kForeach).equal(weights_after(Implementation::kForLoop)));
}

TEST_CASE("a skipped update changes no weight and no state even with non-finite gradients") {
  const config::OptimizerName name = GENERATE(config::OptimizerName::kAdamW, config::OptimizerName::kAdam);
  const Implementation implementation =
      GENERATE(Implementation::kFused, Implementation::kForeach, Implementation::kForLoop);
  Shards shards(at::kFloat);
  Adam adam(shards.all, {.name = name, .implementation = implementation});
  shards.set_grads(0);
  adam.step(1e-2, kGo);
  const Tensor weight = shards.all[0]->master().clone(), m = adam.states(0)[0].clone(),
               v = adam.states(0)[1].clone();
  shards.grads[0].fill_(NAN);
  adam.step(1e-2, kSkip);
  CHECK(shards.all[0]->master().equal(weight));
  CHECK(adam.states(0)[0].equal(m));
  CHECK(adam.states(0)[1].equal(v));
  CHECK(adam.step_count().item<float>() == 1);
}

TEST_CASE("moments in bf16 follow fp32 moments, by equal bits in every implementation") {
  const config::OptimizerName name = GENERATE(config::OptimizerName::kAdamW, config::OptimizerName::kAdam);
  const auto after = [&](Implementation implementation, checkpoint::Dtype dtype, uint64_t seed) {
    Shards shards(at::kBFloat16);
    Adam adam(shards.all, {.name = name, .implementation = implementation, .state_dtype = dtype}, seed);
    for (int step = 0; step < 6; ++step) {
      shards.set_grads(step);
      if (step == 2) shards.grads[0].fill_(NAN);
      adam.step(1e-2, step == 2 ? kSkip : kGo);
    }
    CHECK(adam.states(0)[1].scalar_type() ==
          (dtype == checkpoint::Dtype::kBFloat16 ? at::kBFloat16 : at::kFloat));
    CHECK(shards.all[0]->compute_shard().equal(shards.all[0]->master().to(at::kBFloat16)));
    return at::cat({shards.all[0]->master().flatten(), shards.all[1]->master().flatten(),
                    adam.states(0)[0].to(at::kFloat).flatten()});
  };
  const Tensor rounded = after(Implementation::kFused, checkpoint::Dtype::kBFloat16, 1);
  for (const Implementation other : {Implementation::kForeach, Implementation::kForLoop})
    CHECK(rounded.equal(after(other, checkpoint::Dtype::kBFloat16, 1)));
  CHECK_FALSE(rounded.equal(after(Implementation::kFused, checkpoint::Dtype::kBFloat16, 2)));
  CHECK(at::allclose(rounded, after(Implementation::kFused, checkpoint::Dtype::kFloat32, 1), 0.05, 2e-3));
}

TEST_CASE("the update writes the bf16 copy that is gathered") {
  const Implementation implementation = GENERATE(Implementation::kFused, Implementation::kForeach);
  Shards shards(at::kBFloat16);
  // Two stacks of matrices whose copies lie side by side for each expert, with gaps between.
  const parallel::ShardingOptions options{.compute_dtype = at::kBFloat16};
  const ParameterPtr pack = make_parameter("w1 and w3", {2, 6, 4}, Init::ones());
  parallel::PackMemory memory(*pack, 1, options);
  for (int i = 0; i < 2; ++i) {
    const ParameterPtr parameter = make_parameter("w", {2, 3, 4}, Init::ones());
    parameter->pack = pack;
    shards.all.push_back(
        std::make_shared<parallel::ShardedParameter>(parameter, test::cut_by_rows(1), options, &memory));
    shards.grads.push_back(at::zeros({2 * 3 * 4}));
    shards.all.back()->bind_grad(shards.grads.back());
    CHECK_FALSE(shards.all.back()->compute_shard().is_contiguous());
  }
  Adam adam(shards.all, {.implementation = implementation});
  shards.set_grads(0);
  adam.step(1e-2, kGo);
  for (const auto& shard : shards.all) {
    CHECK(shard->compute_shard().scalar_type() == at::kBFloat16);
    CHECK(shard->compute_shard().equal(shard->master().to(at::kBFloat16)));
    CHECK(shard->parameter().weight.data_ptr() == shard->compute_shard().data_ptr());
  }
}

}  // namespace hyperion::optim
