#include "trainer/engine/expert_balance.h"

#include <algorithm>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "trainer/engine/layer_metrics.h"

namespace hyperion::trainer {
namespace {

models::ExpertBalancePtr balance(int64_t layer, const std::vector<int64_t>& counts, double coefficient) {
  auto made = std::make_shared<models::ExpertBalance>();
  made->bias = make_parameter(fmt::format("layers.{}.moe.expert_bias", layer),
                              {static_cast<int64_t>(counts.size())}, Init::normal(0));
  made->bias->weight = at::zeros(made->bias->shape, at::kFloat);
  made->counts = at::tensor(counts, at::kLong);
  made->coefficient = coefficient;
  return made;
}

}  // namespace

TEST_CASE("the block whose busiest expert is furthest above the mean is reported, with its experts") {
  const auto group = parallel::make_solo_communicator("world/0", 0);
  const parallel::FsdpContext ranks(parallel::Mesh({}, 1), 0, *group, *group, {});
  const std::vector<models::ExpertBalancePtr> balances = {balance(3, {4, 4, 2, 6}, 1e-3),
                                                          balance(12, {1, 8, 7, 0}, 0)};
  models::LayerMetrics reported;
  record_expert_loads(balances, ranks, /*expert_ranks=*/nullptr, reported);
  CHECK(balances[0]->counts.sum().item<int64_t>() == 16);  // for the update
  CHECK(balances[1]->counts.sum().item<int64_t>() == 0);
  metrics::MetricList list = keep_worst_block(
      reduce_layer_metrics(reported, parallel::ReduceChain({group.get()}), *group, at::kCPU));
  std::ranges::sort(list);
  CHECK(list == metrics::MetricList{{"experts/busiest", 1},
                                    {"experts/busiest_over_mean", 2},
                                    {"experts/idlest", 3},
                                    {"experts/idlest_over_mean", 0},
                                    {"experts/worst_layer", 12}});
  update_expert_biases(balances, ranks, at::zeros({}, at::kFloat));
  CHECK(balances[0]->counts.sum().item<int64_t>() == 0);
  CHECK(balances[1]->bias->weight.abs().sum().item<float>() == 0);
  CHECK(keep_worst_block({{"activations/max", 2}}) == metrics::MetricList{{"activations/max", 2}});
}

TEST_CASE("a collapse of experts is said when it lasts, and again when it comes back") {
  CollapseWatch watch(/*experts=*/8, /*top_k=*/2, /*coefficient=*/0.001);
  const auto add = [&](double busiest, int steps) {
    std::vector<std::string> said;
    for (int step = 0; step < steps; ++step)
      if (std::string text = watch.add({{"experts/busiest_over_mean", busiest}, {"experts/worst_layer", 3}});
          !text.empty())
        said.push_back(std::move(text));
    return said;
  };
  CHECK(add(3.99, 9).empty());  // the first steps say little
  CHECK(add(3.5, 1).empty());
  const std::vector<std::string> said = add(3.99, 50);
  REQUIRE(said.size() == 1);
  CHECK_THAT(said[0], Catch::Contains("experts of the worst block, now layers.3") &&
                          Catch::Contains("now 3.99 times the mean of at most 4.00") &&
                          Catch::Contains("model.args.load_balance_coeff (0.001 now)"));
  CHECK(add(1.2, 1).empty());
  CHECK(add(3.7, 10).size() == 1);
  CollapseWatch all(/*experts=*/8, /*top_k=*/8, 0);  // every expert gets every token
  for (int step = 0; step < 50; ++step) CHECK(all.add({{"experts/busiest_over_mean", 1}}).empty());
}

TEST_CASE("experts with more tokens than the mean are chosen less, but for a step that is left out") {
  const auto group = parallel::make_solo_communicator("world/0", 0);
  const parallel::FsdpContext ranks(parallel::Mesh({}, 1), 0, *group, *group, {});
  const auto updated = [&](double skip) {
    const models::ExpertBalancePtr one = balance(0, {5, 5, 5, 1}, 1e-3);
    update_expert_biases({one}, ranks, at::full({}, skip));
    CHECK(one->counts.sum().item<int64_t>() == 0);
    return one->bias->weight;
  };
  // The signs of mean - count, -1, -1, -1 and 1, without their mean.
  CHECK(at::allclose(updated(0), at::tensor({-0.5e-3F, -0.5e-3F, -0.5e-3F, 1.5e-3F}), 1e-6, 0));
  CHECK(updated(1).equal(at::zeros({4})));
}

}  // namespace hyperion::trainer
