// Auxiliary losses on every mesh: the losses, norms and metrics of one rank.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"

namespace hyperion::parallel {
namespace {

struct AuxiliaryRun {
  std::vector<double> losses, norms, reported;  // reported: in the order of tags, of step 0
};

AuxiliaryRun train_with_losses(int ranks, const TinyJob& job, const std::vector<std::string>& tags) {
  constexpr int64_t kSteps = 4;
  const auto all = run_ranks(ranks, [=](const Environment& environment) {
    TinyTraining training(job, environment);
    const std::map<std::string, double> reported = training.reported_metrics(0);
    std::vector<double> numbers;
    for (const std::string& tag : tags) numbers.push_back(reported.at(tag));
    for (int64_t step = 0; step < kSteps; ++step) {
      const TinyStep made = training.step(step);
      numbers.insert(numbers.end(), {made.loss, made.grad_norm});
    }
    return numbers;
  });
  AuxiliaryRun run;
  for (const std::vector<double>& rank : all)
    if (rank != all.front()) throw std::runtime_error("the ranks have different losses, norms or metrics");
  run.reported.assign(all.front().begin(), all.front().begin() + static_cast<int64_t>(tags.size()));
  for (size_t i = tags.size(); i < all.front().size(); i += 2) {
    run.losses.push_back(all.front()[i]);
    run.norms.push_back(all.front()[i + 1]);
  }
  return run;
}

double largest_relative(const std::vector<double>& found, const std::vector<double>& expected) {
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i)
    largest = std::max(largest, std::abs(found.at(i) - expected[i]) / std::abs(expected[i]));
  return largest;
}

using AuxiliaryGradients = std::map<int64_t, std::map<int64_t, double>>;  // by parameter and element

AuxiliaryGradients first_gradients_of(int ranks, const TinyJob& job) {
  const auto all = run_ranks(ranks, [=](const Environment& environment) {
    return TinyTraining(job, environment).first_gradients();
  });
  AuxiliaryGradients gradients;
  for (const auto& rank : all)
    for (const auto& [parameter, element, value] : rank) gradients[parameter][element] = value;
  return gradients;
}

// The largest relative L2 distance of a parameter's gradients.
double largest_distance(const AuxiliaryGradients& found, const AuxiliaryGradients& expected) {
  double largest = 0;
  for (const auto& [parameter, elements] : expected) {
    double distance = 0, size = 0;
    for (const auto& [element, value] : elements) {
      distance += std::pow(found.at(parameter).at(element) - value, 2);
      size += std::pow(value, 2);
    }
    if (size > 0) largest = std::max(largest, std::sqrt(distance / size));
  }
  return largest;
}

struct AuxiliaryLayout {
  int ranks;
  TinyJob job;  // its mesh, and what goes with it
};

}  // namespace

TEST_CASE("z-loss trains to the losses, norms and metric of one rank on every mesh") {
  const std::vector<std::string> tags = {"loss_metrics/z_loss"};
  TinyJob one{.z_loss = 0.01};
  const AuxiliaryRun expected = train_with_losses(1, one, tags);
  CHECK(expected.reported[0] > 0.01);  // log(17)^2 * 0.01 at least
  const AuxiliaryRun without = train_with_losses(1, {}, {});
  CHECK(std::abs(expected.losses[0] - without.losses[0]) == 0);  // the reported loss is the cross-entropy
  CHECK(largest_relative(expected.norms, without.norms) > 1e-3);
  const std::vector<AuxiliaryLayout> layouts = {
      {1, {.accumulation = 3}},
      {2, {.accumulation = 2}},
      {2, {.mesh = {.dp_replicate = 2}}},
      {2, {.mesh = {.cp = 2}}},
      {2, {.mesh = {.pp = 2}, .accumulation = 3}},
      {2, {.mesh = {.tp = 2}, .heads = 4, .kv_heads = 2}},
      {2, {.mesh = {.tp = 2}, .heads = 4, .kv_heads = 2, .disable_loss_parallel = true}},
  };
  TinyJob of_two_heads{.heads = 4, .kv_heads = 2, .z_loss = 0.01};
  const AuxiliaryRun with_heads = train_with_losses(1, of_two_heads, tags);
  for (const AuxiliaryLayout& layout : layouts) {
    TinyJob job = layout.job;
    job.z_loss = 0.01;
    CAPTURE(layout.ranks, job.mesh.tp, job.mesh.cp, job.mesh.pp, job.mesh.dp_replicate, job.accumulation,
            job.disable_loss_parallel);
    const AuxiliaryRun& reference = job.heads == 4 ? with_heads : expected;
    const AuxiliaryRun found = train_with_losses(layout.ranks, job, tags);
    CHECK(largest_relative(found.losses, reference.losses) < 2e-7);
    CHECK(largest_relative(found.norms, reference.norms) < 2e-6);
    CHECK(largest_relative(found.reported, reference.reported) < 2e-7);
  }
}

TEST_CASE("the routers' auxiliary losses are those of one rank on every mesh, and so are the gradients") {
  const std::vector<std::string> tags = {"loss_metrics/router_z_loss", "loss_metrics/sequence_aux_loss",
                                         "loss_metrics/global_aux_loss", "experts/global_aux_loss/layers.1"};
  // 12 sequences of one microbatch each rank, and with `accumulation` the same sequences in each microbatch
  // of all ranks: the global loss depends on them.
  const std::vector<AuxiliaryLayout> layouts = {
      {2, {.mesh = {.dp_shard = 2}, .accumulation = 3}},
      {2, {.mesh = {.dp_replicate = 2}, .checkpoint = models::ActivationCheckpoint::kFull}},
      {2, {.mesh = {.cp = 2}}},
      {2, {.mesh = {.pp = 2}, .accumulation = 3}},
      {2, {.mesh = {.tp = 2}}},
      {2, {.mesh = {.ep = 2}}},
      {2, {.mesh = {.dp_shard = 1, .tp = 2, .ep = 2}}},
      {4, {.mesh = {.tp = 2, .ep = 2, .etp = 2}}},
      {4, {.mesh = {.ep = 4, .ep_nodes = 2}}},
  };
  const char* model = GENERATE("deepseek_v3", "qwen3_moe");
  const auto with_losses = [&](TinyJob job) {
    job.model = model;
    job.heads = 4;
    job.kv_heads = 2;
    job.experts = 4;
    job.expert_hidden = 8;
    job.router_losses = {.z = 0.01, .sequence = 0.02, .global = 0.03};
    return job;
  };
  std::map<int64_t, AuxiliaryRun> of_one_rank;  // by accumulation
  std::map<int64_t, AuxiliaryGradients> gradients_of_one_rank;
  TinyJob without = with_losses({});
  without.router_losses = {};
  const AuxiliaryGradients plain = first_gradients_of(1, without);
  for (const AuxiliaryLayout& layout : layouts) {
    const TinyJob job = with_losses(layout.job);
    CAPTURE(model, layout.ranks, job.mesh.dp_replicate, job.mesh.tp, job.mesh.cp, job.mesh.pp, job.mesh.ep,
            job.mesh.etp, job.mesh.ep_nodes, job.accumulation);
    if (!of_one_rank.contains(job.accumulation)) {
      const TinyJob one = with_losses({.accumulation = job.accumulation});
      of_one_rank[job.accumulation] = train_with_losses(1, one, tags);
      gradients_of_one_rank[job.accumulation] = first_gradients_of(1, one);
      REQUIRE(largest_distance(plain, gradients_of_one_rank[job.accumulation]) > 1e-3);
    }
    const AuxiliaryRun &expected = of_one_rank[job.accumulation],
                       found = train_with_losses(layout.ranks, job, tags);
    CHECK(largest_relative(found.losses, expected.losses) < 2e-7);
    CHECK(largest_relative(found.norms, expected.norms) < 2e-6);
    CHECK(largest_relative(found.reported, expected.reported) < 2e-7);
    CHECK(largest_distance(first_gradients_of(layout.ranks, job), gradients_of_one_rank[job.accumulation]) <
          2e-6);
  }
}

}  // namespace hyperion::parallel
