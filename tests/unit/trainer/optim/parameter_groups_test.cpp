// Parameter groups: which settings a parameter has, and updates that torch.optim's param_groups make too.
#include "trainer/optim/parameter_groups.h"

#include <catch2/catch.hpp>

#include <ATen/ops/allclose.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/adamw.h>

#include "tests/support/placements.h"
#include "trainer/optim/adam.h"

namespace hyperion::optim {

TEST_CASE("a group's settings win, and those of [optimizer] hold where it has none") {
  const config::JobConfig::Optimizer options{
      .weight_decay = 0.1,
      .decay_norms_and_biases = false,
      .groups = {{.match = {"*norm*"}, .lr_scale = 2, .weight_decay = 0.3},
                 {.match = {"output.*"}, .beta1 = 0.5}}};
  CHECK(settings_of(options, "norm.weight", 1) == ParameterSettings{2, 0.9, 0.95, 0.3});
  CHECK(settings_of(options, "output.weight", 2) == ParameterSettings{1, 0.5, 0.95, 0.1});
  CHECK(settings_of(options, "output.bias", 1) == ParameterSettings{1, 0.5, 0.95, 0});
  CHECK(settings_of(options, "layers.0.attention.wq.weight", 2) == ParameterSettings{1, 0.9, 0.95, 0.1});
  CHECK(settings_of({}, "norm.weight", 1) == ParameterSettings{1, 0.9, 0.95, 0.1});
  CHECK(rates_of_groups(options, 0.01) ==
        std::vector<std::pair<std::string, double>>{{"lr/group0", 0.02}, {"lr/group1", 0.01}});
}

TEST_CASE("groups are updated as torch's param_groups in every implementation") {
  using Implementation = config::OptimizerImplementation;
  const Implementation implementation =
      GENERATE(Implementation::kFused, Implementation::kForeach, Implementation::kForLoop);
  const std::vector<std::string> names = {"tok_embeddings.weight", "layers.0.attention.wq.weight",
                                          "norm.weight", "layers.1.attention.wq.weight", "output.weight"};
  at::manual_seed(3);
  std::vector<parallel::ShardedParameterPtr> all;
  std::vector<at::Tensor> reference;
  for (const std::string& name : names) {
    const std::vector<int64_t> shape =
        name == "norm.weight" ? std::vector<int64_t>{6} : std::vector<int64_t>{6, 4};
    all.push_back(std::make_shared<parallel::ShardedParameter>(
        make_parameter(name, shape, Init::ones()), test::cut_by_rows(1), parallel::ShardingOptions{}));
    all.back()->bind_grad(at::zeros({all.back()->parameter().numel()}));
    all.back()->master().copy_(at::randn(shape));
    reference.push_back(all.back()->master().clone().requires_grad_());
  }
  Adam ours(all, {.weight_decay = 0.1,
                  .decay_norms_and_biases = false,
                  .groups = {{.match = {"tok_embeddings.weight", "output.weight"},
                              .lr_scale = 0.25,
                              .weight_decay = 0.0},
                             {.match = {"*.wq.*"}, .beta1 = 0.8, .beta2 = 0.99}},
                  .implementation = implementation});
  const auto group = [&](std::vector<size_t> members, double lr, double beta1, double beta2, double decay) {
    std::vector<at::Tensor> tensors;
    for (const size_t i : members) tensors.push_back(reference[i]);
    auto options = std::make_unique<torch::optim::AdamWOptions>(lr);
    options->betas({beta1, beta2}).eps(1e-8).weight_decay(decay);
    return torch::optim::OptimizerParamGroup(tensors, std::move(options));
  };
  torch::optim::AdamW theirs(std::vector<torch::optim::OptimizerParamGroup>{
      group({0, 4}, 0.25e-2, 0.9, 0.95, 0), group({1, 3}, 1e-2, 0.8, 0.99, 0.1),
      group({2}, 1e-2, 0.9, 0.95, 0)});
  for (int step = 0; step < 4; ++step) {
    for (size_t i = 0; i < all.size(); ++i) {
      reference[i].mutable_grad() = at::randn_like(reference[i]);
      all[i]->grad().copy_(reference[i].grad().reshape(all[i]->grad().sizes()));
    }
    theirs.step();
    ours.step(1e-2, at::zeros({}));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    CAPTURE(names[i]);
    CHECK(at::allclose(all[i]->master(), reference[i], 1e-5, 1e-6));
  }
  CHECK(ours.settings(all[0]->parameter()).at(2).second == checkpoint::Object(0.0));
}

}  // namespace hyperion::optim
