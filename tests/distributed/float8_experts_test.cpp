// FP8 and MXFP8 experts on ranks that share or divide them: the numbers of one rank, and no bit changed by
// how a block is run again.
#include <algorithm>
#include <cmath>
#include <map>

#include <catch2/catch.hpp>

#include "tests/support/gradients.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"

namespace hyperion::parallel {
namespace {

using float8::GroupedRecipe;

TinyJob job_of(std::optional<GroupedRecipe> recipe, MeshConfig mesh = {}) {
  TinyJob job{.model = "qwen3_moe", .layers = 2, .mesh = mesh, .experts = 4, .expert_hidden = 64};
  job.fits_float8_experts = true;
  job.float8_experts = recipe;
  return job;
}

struct FoundByRanks {
  std::vector<double> losses;
  Gradients gradients;   // of step 0
  int64_t products = 0;  // of a rank in that step
};

FoundByRanks train(int ranks, const TinyJob& job, int64_t steps) {
  constexpr int64_t kLoss = -1, kProducts = -2;  // instead of a parameter
  const auto all = run_ranks(ranks, [=](const Environment& environment) {
    TinyTraining training(job, environment);
    std::vector<TinyTraining::GradientElement> found = training.first_gradients();
    if (job.float8_experts)
      found.push_back({kProducts, 0, static_cast<float>(training.float8().counters->products)});
    for (int64_t step = 0; step < steps; ++step)
      found.push_back({kLoss, step, static_cast<float>(training.step(step).loss)});
    training.audit_replicas();
    return found;
  });
  FoundByRanks found;
  found.losses.resize(static_cast<size_t>(steps));
  for (const auto& of_rank : all)
    for (const auto& [parameter, element, value] : of_rank) {
      if (parameter == kLoss)
        found.losses[element] = value;
      else if (parameter == kProducts)
        found.products = static_cast<int64_t>(value);
      else
        found.gradients[{parameter, element}] = value;
    }
  return found;
}

}  // namespace

TEST_CASE("FP8 experts that ranks share or divide have the gradients of one rank") {
  const GroupedRecipe recipe = GENERATE(GroupedRecipe::kRowwise, GroupedRecipe::kMx);
  const FoundByRanks one = train(1, job_of(recipe), 4), plain = train(1, job_of(std::nullopt), 4);
  CHECK(one.products == 2 * 9);
  const double rounded = farthest_gradient(one.gradients, plain.gradients);
  CHECK(rounded > 1e-2);
  CHECK(rounded < 2e-1);
  for (const MeshConfig& mesh :
       {MeshConfig{.ep = 2}, MeshConfig{.tp = 2}, MeshConfig{.tp = 2, .ep = 2}, MeshConfig{.cp = 2}}) {
    CAPTURE(static_cast<int>(recipe), mesh.ep, mesh.tp, mesh.cp, rounded);
    const FoundByRanks found = train(2, job_of(recipe, mesh), 4);
    CHECK(found.products == one.products);
    CHECK(farthest_gradient(found.gradients, one.gradients) < 0.1 * rounded);
    for (size_t step = 0; step < one.losses.size(); ++step)
      CHECK(found.losses[step] == Approx(one.losses[step]).epsilon(1e-4));
  }
}

TEST_CASE("gpt_oss's experts in FP8 train with expert parallel ranks as on one") {
  const GroupedRecipe recipe = GENERATE(GroupedRecipe::kRowwise, GroupedRecipe::kMx);
  const auto job_on = [&](std::optional<GroupedRecipe> of, MeshConfig mesh) {
    TinyJob job = job_of(of, mesh);
    job.model = "gpt_oss";
    job.window = 3;
    return job;
  };
  const FoundByRanks one = train(1, job_on(recipe, {}), 4), plain = train(1, job_on(std::nullopt, {}), 4);
  CHECK(one.products == 2 * 6);  // of gate and up together, and of down
  const double rounded = farthest_gradient(one.gradients, plain.gradients);
  CHECK(rounded > 1e-3);
  for (const MeshConfig& mesh : {MeshConfig{.ep = 2}, MeshConfig{.tp = 2}, MeshConfig{.tp = 2, .ep = 2}}) {
    CAPTURE(static_cast<int>(recipe), mesh.ep, mesh.tp, rounded);
    const FoundByRanks found = train(2, job_on(recipe, mesh), 4);
    CHECK(farthest_gradient(found.gradients, one.gradients) < 0.1 * rounded);
    for (size_t step = 0; step < one.losses.size(); ++step)
      CHECK(found.losses[step] == Approx(one.losses[step]).epsilon(1e-4));
  }
}

TEST_CASE("checkpointing changes no bit of FP8 experts") {
  const GroupedRecipe recipe = GENERATE(GroupedRecipe::kRowwise, GroupedRecipe::kMx);
  const int ranks = GENERATE(1, 2);
  TinyJob job = job_of(recipe, {.ep = ranks});
  job.compute = at::kBFloat16;
  const FoundByRanks plain = train(ranks, job, 3);
  using models::ActivationCheckpoint;
  for (const ActivationCheckpoint mode : {ActivationCheckpoint::kFull, ActivationCheckpoint::kSelectiveOp,
                                          ActivationCheckpoint::kElementwise}) {
    job.checkpoint = mode;
    const FoundByRanks found = train(ranks, job, 3);
    CHECK(found.losses == plain.losses);
    CHECK(found.gradients == plain.gradients);
  }
}

}  // namespace hyperion::parallel
