// Auxiliary losses on every mesh: the losses, norms and metrics of one rank.
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

}  // namespace hyperion::parallel
