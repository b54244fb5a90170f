// Tensor parallelism, alone and with FSDP and HSDP, on a CPU: equal to one rank in losses, norms and each
// parameter's gradient, also where nothing divides by the number of ranks.
#include <algorithm>
#include <cmath>
#include <map>

#include <catch2/catch.hpp>

#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"

namespace hyperion::parallel {
namespace {

constexpr int64_t kSteps = 10;

// Four ranks can divide its heads; vocabulary 17 and hidden width 25 divide by nothing.
TinyJob divisible(const char* model, MeshConfig mesh = {}, int64_t accumulation = 1) {
  return {.model = model, .mesh = mesh, .accumulation = accumulation, .heads = 4, .kv_heads = 4};
}

struct Layout {
  int ranks;
  MeshConfig mesh;
  int64_t accumulation = 1;
};

std::vector<std::vector<TinyStep>> train_all(int ranks, const TinyJob& job, int64_t steps) {
  return run_ranks(ranks,
                   [=](const Environment& environment) { return train_tiny(job, environment, steps); });
}

std::vector<TinyStep> train(int ranks, const TinyJob& job, int64_t steps = kSteps) {
  const auto all = train_all(ranks, job, steps);
  for (const auto& rank : all)  // the same numbers on every rank
    if (rank != all.front()) throw std::runtime_error("the ranks have different losses or norms");
  return all.front();
}

double largest(const std::vector<TinyStep>& a, const std::vector<TinyStep>& b, double TinyStep::*number) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(a[i].*number - b.at(i).*number) / std::abs(b[i].*number));
  return largest;
}

using Gradients = std::map<int64_t, std::map<int64_t, float>>;  // parameter -> element -> value

// Of all ranks together. Throws where two ranks have different numbers for an element.
Gradients first_gradients(int ranks, const TinyJob& job) {
  const auto all = run_ranks(ranks, [=](const Environment& environment) {
    return TinyTraining(job, environment).first_gradients();
  });
  Gradients whole;
  for (const auto& rank : all)
    for (const auto& [parameter, element, value] : rank) {
      const auto [known, added] = whole[parameter].try_emplace(element, value);
      if (!added && known->second != value)
        throw std::runtime_error("two ranks have different numbers for one element");
    }
  return whole;
}

// The largest relative L2 difference of a parameter's gradient.
double largest_difference_of_a_parameter(const Gradients& found, const Gradients& expected) {
  if (found.size() != expected.size()) return INFINITY;
  double largest = 0;
  for (const auto& [parameter, elements] : expected) {
    if (found.at(parameter).size() != elements.size()) return INFINITY;
    double difference = 0, size = 0;
    for (const auto& [element, value] : elements) {
      difference += std::pow(found.at(parameter).at(element) - value, 2);
      size += std::pow(value, 2);
    }
    largest = std::max(largest, std::sqrt(difference / size));
  }
  return largest;
}

}  // namespace

TEST_CASE("tensor parallelism with every kind of sharding trains to the losses and norms of one rank") {
  const char* model = GENERATE("llama3", "qwen3");
  const std::vector<TinyStep> one = train(1, divisible(model));
  REQUIRE(one.back().loss < 0.8 * one.front().loss);
  for (const Layout& layout : {
           Layout{2, {.tp = 2}},
           Layout{2, {.tp = 2}, 3},
           Layout{4, {.tp = 4}},
           Layout{4, {.tp = 2}, 3},
           Layout{4, {.dp_replicate = 2, .dp_shard = 1, .tp = 2}, 3},
           Layout{8, {.dp_replicate = 2, .dp_shard = 2, .tp = 2}, 3},
       }) {
    CAPTURE(model, layout.ranks, layout.mesh.dp_replicate, layout.mesh.tp, layout.accumulation);
    const auto steps = train(layout.ranks, divisible(model, layout.mesh, layout.accumulation));
    CHECK(largest(steps, one, &TinyStep::loss) < 5e-6);
    CHECK(largest(steps, one, &TinyStep::grad_norm) < 2e-5);
  }
}

TEST_CASE("the gradient of every parameter is that of one rank") {
  const char* model = GENERATE("llama3", "qwen3");
  const Gradients one = first_gradients(1, divisible(model));
  for (const Layout& layout :
       {Layout{2, {.tp = 2}}, Layout{2, {.tp = 2}, 3}, Layout{4, {.tp = 4}}, Layout{4, {.tp = 2}, 3},
        Layout{4, {.dp_replicate = 2, .dp_shard = 1, .tp = 2}},
        Layout{8, {.dp_replicate = 2, .dp_shard = 2, .tp = 2}, 3}}) {
    CAPTURE(model, layout.ranks, layout.mesh.dp_replicate, layout.mesh.tp, layout.accumulation);
    const TinyJob job = divisible(model, layout.mesh, layout.accumulation);
    CHECK(largest_difference_of_a_parameter(first_gradients(layout.ranks, job), one) < 1e-5);
  }
}

TEST_CASE("what layers report does not depend on mesh, accumulation and recomputation") {
  const auto reported = [](int ranks, TinyJob job) {
    job.shared_memory = false;
    const auto all = run_ranks(ranks, [=](const Environment& environment) {
      return TinyTraining(job, environment).first_layer_metrics();
    });
    for (const auto& rank : all) CHECK(rank == all.front());
    return all.front();
  };
  const std::vector<double> one = reported(1, divisible("llama3"));
  REQUIRE(one.size() == 3 + 1);
  for (const Layout& layout :
       {Layout{1, {}, 3}, Layout{2, {}}, Layout{2, {.tp = 2}, 3}, Layout{4, {.dp_replicate = 2, .tp = 2}}}) {
    CAPTURE(layout.ranks, layout.mesh.dp_replicate, layout.mesh.tp, layout.accumulation);
    TinyJob job = divisible("llama3", layout.mesh, layout.accumulation);
    const std::vector<double> found = reported(layout.ranks, job);
    REQUIRE(found.size() == one.size());
    for (size_t i = 0; i < one.size(); ++i) CHECK(found[i] == Approx(one[i]).epsilon(1e-5));
    job.checkpoint = models::ActivationCheckpoint::kFull;
    CHECK(reported(layout.ranks, job) == found);
  }
}

TEST_CASE("fewer key heads than query heads and gathered logits train to the same losses") {
  TinyJob one = divisible("llama3"), two = divisible("llama3", {.tp = 2});
  one.kv_heads = two.kv_heads = 2;
  const auto expected = train(1, one);
  CHECK(largest(train(2, two), expected, &TinyStep::loss) < 5e-6);
  two.disable_loss_parallel = true;
  CHECK(largest(train(2, two), expected, &TinyStep::loss) < 5e-6);
}

TEST_CASE(
    "checkpointing and resharding and transports and a second run change no bit under tensor parallelism") {
  const int ranks = GENERATE(2, 4);  // T 2, FSDP 2 x T 2
  const TinyJob base = divisible("qwen3", {.tp = 2}, 2);
  CAPTURE(ranks);
  const std::vector<TinyStep> plain = train(ranks, base, 6);
  CHECK(train(ranks, base, 6) == plain);
  for (models::ActivationCheckpoint mode :
       {models::ActivationCheckpoint::kFull, models::ActivationCheckpoint::kSelectiveOp,
        models::ActivationCheckpoint::kElementwise}) {
    TinyJob job = base;
    job.checkpoint = mode;
    CHECK(train(ranks, job, 6) == plain);
  }
  TinyJob unsharded = base, over_sockets = base;
  unsharded.reshard_after_forward = false;
  CHECK(train(ranks, unsharded, 6) == plain);
  over_sockets.shared_memory = false;
  CHECK(train(ranks, over_sockets, 6) == plain);
}

TEST_CASE("gradients of norms that are not added up over tensor parallel ranks are found") {
  TinyJob wrong = divisible("llama3", {.tp = 2});
  wrong.omit_replicated_sum = true;
  // Each rank has its own part of the sum.
  CHECK_THROWS_WITH(first_gradients(2, wrong), "two ranks have different numbers for one element");

  // After the first step the weights differ, which the audit of a real job finds.
  const auto audited = [](const TinyJob& job) {
    return run_ranks_outcome(2, [job](const Environment& environment) {
      TinyTraining training(job, environment);
      training.step(0);
      training.audit_replicas();
    });
  };
  for (const RankOutcome& rank : audited(wrong)) {
    CHECK(rank.exit_code == 70);
    CHECK_THAT(rank.error, Catch::Contains("norm.weight") && Catch::Contains("tp"));
  }
  for (const RankOutcome& rank : audited(divisible("llama3", {.tp = 2}))) {
    INFO(rank.error);
    CHECK(rank.exit_code == 0);
  }
}

TEST_CASE("tensor parallelism without FSDP computes in the configured precision") {
  TinyJob fp32 = divisible("llama3", {.dp_shard = 1, .tp = 2}), bf16 = fp32;
  bf16.compute = at::kBFloat16;
  const auto difference = largest(train(2, bf16), train(2, fp32), &TinyStep::loss);
  CHECK(difference > 0);
  CHECK(difference < 0.05);
}

TEST_CASE("scales of weights that are gathered in FP8 do not depend on the mesh") {
  const auto scales = [](int ranks, MeshConfig mesh) {
    const TinyJob job{.model = "llama3",
                      .mesh = mesh,
                      .compute = at::kBFloat16,
                      .kv_heads = 2,
                      .float8 = "tensorwise",
                      .float8_gather = true};
    return run_ranks(ranks, [job](const Environment& environment) {
      TinyTraining training(job, environment);
      std::vector<float> scales;  // 0: gathered in bf16
      for (const ShardedParameterPtr& parameter : training.stage().parameters())
        scales.push_back(parameter->encoded() ? parameter->parameter().encoded.scale.item<float>() : 0);
      return scales;
    });
  };
  const std::vector<float> one = scales(1, {}).front();
  for (const Layout& layout : {Layout{2, {.tp = 2}}, Layout{4, {.tp = 2}}}) {
    const auto all = scales(layout.ranks, layout.mesh);
    for (const std::vector<float>& rank : all) CHECK(rank == all.front());
    int64_t compared = 0;
    for (size_t i = 0; i < one.size(); ++i) {
      if (all.front().at(i) == 0) continue;
      ++compared;
      CHECK(all.front()[i] == one[i]);
    }
    CHECK(compared == 3 * 7);  // every linear layer of each block
  }
}

// Of the norms: two of each of three blocks and the last, 18 elements each; nothing else goes over the tensor
// parallel group as a sum of gradients, and the norm's own sum is one number.
TEST_CASE("replicated gradients are added up once a step in fp32") {
  const auto results = run_ranks(4, [](const Environment& environment) {
    TinyJob job = divisible("llama3", {.tp = 2}, 3);
    job.compute = at::kBFloat16;
    TinyTraining training(job, environment);
    training.ledger().reset();
    training.step(0);
    std::vector<int64_t> all_reduces;
    for (const auto& [key, entry] : training.ledger().entries())
      if (key.first.starts_with("tp/") && key.second == "all_reduce")
        all_reduces = {entry.calls, entry.bytes};
    return all_reduces;
  });
  for (const auto& rank : results) CHECK(rank == std::vector<int64_t>{2, 7 * 9 * 4 + 8});
}

}  // namespace hyperion::parallel
