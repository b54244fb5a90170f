#include "trainer/optim/ema.h"

#include <cmath>

#include <catch2/catch.hpp>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "tests/support/placements.h"

namespace hyperion::optim {

using at::Tensor;

namespace {

const Tensor kUpdates = at::zeros({}), kSkipped = at::ones({});

// Rank `rank` of `world`'s shards of parameters with these shapes.
std::vector<parallel::ShardedParameterPtr> shards(int rank, int world,
                                                  const parallel::ShardingOptions& options = {}) {
  std::vector<parallel::ShardedParameterPtr> all;
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{37, 5}, {3}, {64, 129}})
    all.push_back(std::make_shared<parallel::ShardedParameter>(make_parameter("p", shape, Init::ones()),
                                                               test::cut_by_rows(world, rank), options));
  return all;
}

// The weights of a step, the same for every sharding.
void set_weights(const std::vector<parallel::ShardedParameterPtr>& all, int step) {
  for (size_t i = 0; i < all.size(); ++i) {
    at::manual_seed(1000 * step + static_cast<int>(i));
    const Tensor whole = at::randn(all[i]->parameter().shape, at::kDouble);
    Tensor master = all[i]->master();
    master.copy_(whole.narrow(0, all[i]->box().offset[0], master.size(0)));
    if (all[i]->has_separate_compute_shard()) all[i]->compute_shard().copy_(master);
  }
}

std::vector<Tensor> copies(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> all;
  for (const Tensor& tensor : tensors) all.push_back(tensor.clone());
  return all;
}

}  // namespace

TEST_CASE("a thousand updates equal the average in double precision") {
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kDouble);
  const double decay = GENERATE(0.0, 0.9, 0.999);
  const auto all = shards(0, 1, {.state_dtype = dtype, .compute_dtype = dtype});
  set_weights(all, 0);
  Ema ema(all, {.decay = decay});
  std::vector<Tensor> oracle;
  for (const auto& shard : all) oracle.push_back(shard->master().to(at::kDouble).clone());
  for (size_t i = 0; i < all.size(); ++i) CHECK(ema.tensors()[i].equal(all[i]->master()));
  const double ulp = dtype == at::kFloat ? std::pow(2.0, -23) : std::pow(2.0, -52);
  const auto error = [&](const Tensor& average, const Tensor& exact) {  // in ulps of values around 1 or more
    return ((average.to(at::kDouble) - exact).abs() / exact.abs().clamp_min(1)).max().item<double>() / ulp;
  };
  for (int step = 1; step <= 1000; ++step) {
    set_weights(all, step);
    std::vector<Tensor> next;
    for (size_t i = 0; i < all.size(); ++i) {
      const Tensor weight = all[i]->master().to(at::kDouble);
      oracle[i] = decay * oracle[i] + (1 - decay) * weight;
      next.push_back(decay * ema.tensors()[i].to(at::kDouble) + (1 - decay) * weight);
    }
    ema.update(step, kUpdates);
    for (size_t i = 0; step % 100 == 0 && i < all.size(); ++i) CHECK(error(ema.tensors()[i], next[i]) <= 2);
  }
  // The rounding of each update decays with it, so that they add up like a random walk of 1 / (1 - decay)
  // steps.
  for (size_t i = 0; i < all.size(); ++i) {
    CHECK(ema.tensors()[i].scalar_type() == dtype);
    CHECK(error(ema.tensors()[i], oracle[i]) <= 64);
  }
}

TEST_CASE("a sharded average is bit for bit the unsharded one") {
  const auto whole = shards(0, 1);
  set_weights(whole, 0);
  Ema unsharded(whole, {.decay = 0.99});
  for (int step = 1; step <= 20; ++step) {
    set_weights(whole, step);
    unsharded.update(step, kUpdates);
  }
  for (const int world : {2, 3, 4}) {
    for (int rank = 0; rank < world; ++rank) {
      const auto part = shards(rank, world);
      set_weights(part, 0);
      Ema ema(part, {.decay = 0.99});
      for (int step = 1; step <= 20; ++step) {
        set_weights(part, step);
        ema.update(step, kUpdates);
      }
      for (size_t i = 0; i < part.size(); ++i) {
        const Tensor& mine = ema.tensors()[i];
        CHECK(mine.equal(unsharded.tensors()[i].narrow(0, part[i]->box().offset[0], mine.size(0))));
      }
    }
  }
}

TEST_CASE("the average takes four bytes per parameter divided by the number of shards") {
  const size_t parameters = 37 * 5 + 3 + 64 * 129;
  const auto bytes = [](int rank, int ranks, const config::JobConfig::Ema& options) {
    Ema ema(shards(rank, ranks), options);
    size_t total = 0;
    for (const Tensor& average : ema.tensors()) total += average.nbytes();
    return total;
  };
  CHECK(bytes(0, 1, {}) == 4 * parameters);
  CHECK(bytes(0, 3, {}) + bytes(1, 3, {}) + bytes(2, 3, {}) == 4 * parameters);
  CHECK(bytes(0, 1, {.device = config::EmaDevice::kCpu}) == 4 * parameters);
}

TEST_CASE("the average moves every so many steps and not in skipped ones") {
  const auto all = shards(0, 1);
  set_weights(all, 0);
  Ema ema(all, {.decay = 0.5, .every = 3});
  const std::vector<Tensor> first = copies(ema.tensors());
  set_weights(all, 1);
  ema.update(1, kUpdates);
  ema.update(2, kUpdates);
  ema.update(3, kSkipped);
  for (size_t i = 0; i < all.size(); ++i) CHECK(ema.tensors()[i].equal(first[i]));
  ema.update(6, kUpdates);
  for (size_t i = 0; i < all.size(); ++i)
    CHECK(at::allclose(ema.tensors()[i], 0.5 * first[i] + 0.5 * all[i]->master(), 1e-6, 1e-6));
  ema.restart();
  for (size_t i = 0; i < all.size(); ++i) CHECK(ema.tensors()[i].equal(all[i]->master()));
}

TEST_CASE("swapping the average in and out restores weights and average bit for bit") {
  const at::ScalarType compute = GENERATE(at::kFloat, at::kBFloat16);
  const int world = GENERATE(1, 2);
  const auto all = shards(0, world, {.compute_dtype = compute});
  set_weights(all, 0);
  Ema ema(all, {.decay = 0.9});
  set_weights(all, 1);
  ema.update(1, kUpdates);
  const std::vector<Tensor> averages = copies(ema.tensors());
  std::vector<Tensor> masters, computed;
  for (const auto& shard : all) {
    masters.push_back(shard->master().clone());
    computed.push_back(shard->compute_shard().clone());
  }
  ema.swap_in();
  for (size_t i = 0; i < all.size(); ++i) CHECK(all[i]->compute_shard().equal(averages[i].to(compute)));
  CHECK_THROWS_AS(ema.tensors(), Error);
  CHECK_THROWS_AS(ema.update(2, kUpdates), Error);
  CHECK_THROWS_AS(ema.restart(), Error);
  CHECK_THROWS_AS(ema.swap_in(), Error);
  ema.swap_out();
  for (size_t i = 0; i < all.size(); ++i) {
    CHECK(all[i]->master().equal(masters[i]));
    CHECK(all[i]->compute_shard().equal(computed[i]));
    CHECK(ema.tensors()[i].equal(averages[i]));
  }
  CHECK_THROWS_AS(ema.swap_out(), Error);
}

}  // namespace hyperion::optim
