// Context parallelism, alone and with every other kind of parallelism, on a CPU: equal to one rank in losses,
// norms and each parameter's gradient, with no more bytes than planned.
#include <algorithm>
#include <cmath>
#include <map>

#include <catch2/catch.hpp>

#include "tests/support/gradients.h"
#include "tests/support/larger_of.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"

namespace hyperion::parallel {
namespace {

using models::ActivationCheckpoint;

constexpr int64_t kStepsOfParts = 20;

struct ContextLayout {
  int ranks;
  MeshConfig mesh;
  int64_t accumulation = 1;
  bool head_tail = true, documents = false;
  PipelineKind schedule = PipelineKind::k1F1B;
  bool ring = false;
};

TinyJob job_with_parts(const char* model, const ContextLayout& layout) {
  return {.model = model,
          .mesh = layout.mesh,
          .accumulation = layout.accumulation,
          .schedule = layout.schedule,
          .heads = 4,
          .kv_heads = 2,
          .experts = 4,
          .expert_hidden = 9,
          .head_tail = layout.head_tail,
          .documents = layout.documents,
          .ring = layout.ring};
}

std::vector<TinyStep> train_parts(int ranks, const TinyJob& job, int64_t steps = kStepsOfParts) {
  const auto all =
      run_ranks(ranks, [=](const Environment& environment) { return train_tiny(job, environment, steps); });
  for (const auto& rank : all)
    if (rank != all.front()) throw std::runtime_error("the ranks have different losses or norms");
  return all.front();
}

Gradients first_gradients_of_parts(int ranks, const TinyJob& job) {
  const auto all = run_ranks(ranks, [=](const Environment& environment) {
    return TinyTraining(job, environment).first_gradients();
  });
  Gradients whole;
  for (const auto& rank : all)
    for (const auto& [parameter, element, value] : rank) {
      const auto [known, added] = whole.try_emplace({parameter, element}, value);
      if (!added && known->second != static_cast<double>(value))
        throw std::runtime_error("two ranks have different numbers for one element");
    }
  return whole;
}

double largest_in(const std::vector<TinyStep>& found, const std::vector<TinyStep>& expected,
                  double TinyStep::*number) {
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i)
    largest = larger_of(largest,
                        std::abs(found.at(i).*number - expected[i].*number) / std::abs(expected[i].*number));
  return largest;
}

// Losses and norms of 20 steps, and the gradient of every parameter in the first one, against those of one
// rank. Documents and accumulation of one rank are those of the layout.
void check_against_one_rank(const char* model, const std::vector<ContextLayout>& layouts) {
  std::map<bool, std::pair<std::vector<TinyStep>, Gradients>> of_one_rank;  // by documents
  for (const ContextLayout& layout : layouts) {
    CAPTURE(model, layout.ranks, layout.mesh.cp, layout.mesh.dp_replicate, layout.mesh.tp, layout.mesh.pp,
            layout.mesh.ep, layout.accumulation, layout.head_tail, layout.documents);
    auto& [steps, gradients] = of_one_rank[layout.documents];
    if (steps.empty()) {
      const TinyJob one = job_with_parts(model, {1, {}, 1, true, layout.documents});
      steps = train_parts(1, one);
      gradients = first_gradients_of_parts(1, one);
    }
    REQUIRE(steps.back().loss < 0.9 * steps.front().loss);
    const TinyJob job = job_with_parts(model, layout);
    const std::vector<TinyStep> found = train_parts(layout.ranks, job);
    CHECK(largest_in(found, steps, &TinyStep::loss) < 1e-6);
    CHECK(largest_in(found, steps, &TinyStep::grad_norm) < 2e-5);
    CHECK(farthest_gradient(first_gradients_of_parts(layout.ranks, job), gradients) < 1e-5);
  }
}

}  // namespace

TEST_CASE("context parallelism trains to the losses, norms and gradients of one rank") {
  check_against_one_rank("llama3", {{2, {.cp = 2}},
                                    {4, {.cp = 4}, 3, true, true},
                                    {2, {.cp = 2}, 1, false},
                                    {.ranks = 4, .mesh = {.cp = 4}, .ring = true},
                                    {.ranks = 2, .mesh = {.cp = 2}, .head_tail = false, .ring = true}});
}

TEST_CASE("windows and sinks train to the losses of one rank on every kind of mesh") {
  const auto job = [](const ContextLayout& layout) {
    TinyJob tiny = job_with_parts("qwen3_moe", layout);
    tiny.window = 3;
    tiny.sinks = true;
    return tiny;
  };
  const std::vector<TinyStep> one = train_parts(1, job({1, {}}));
  for (const ContextLayout& layout : {ContextLayout{2, {.cp = 2}},
                                      {.ranks = 2, .mesh = {.cp = 2}, .ring = true},
                                      {2, {.tp = 2}},
                                      {2, {.dp_shard = 2}},
                                      {2, {.pp = 2}, 2},
                                      {4, {.dp_shard = 2, .tp = 2, .ep = 2}}}) {
    CAPTURE(layout.ranks, layout.mesh.cp, layout.mesh.tp, layout.mesh.pp, layout.ring);
    const ContextLayout alone{1, {}, layout.accumulation};
    const std::vector<TinyStep> wanted = layout.accumulation == 1 ? one : train_parts(1, job(alone));
    const std::vector<TinyStep> found = train_parts(layout.ranks, job(layout));
    CHECK(largest_in(found, wanted, &TinyStep::loss) < 3e-7);
  }
}

TEST_CASE("context parallelism trains to the losses of one rank on every mesh", "[.]") {
  const char* model = GENERATE("llama3", "qwen3");
  std::vector<ContextLayout> layouts;
  for (const bool documents : {false, true})
    for (const ContextLayout& layout : {ContextLayout{2, {.cp = 2}},
                                        {2, {.cp = 2}, 3},
                                        {4, {.cp = 4}},
                                        {4, {.cp = 4}, 3, false},
                                        {4, {.cp = 2}, 3},
                                        {4, {.dp_replicate = 2, .dp_shard = 1, .cp = 2}},
                                        {8, {.dp_replicate = 2, .dp_shard = 2, .cp = 2}},
                                        {4, {.cp = 2, .tp = 2}},
                                        {4, {.cp = 2, .tp = 2}, 3, false},
                                        {4, {.pp = 2, .cp = 2}, 3},
                                        {8, {.pp = 2, .cp = 2, .tp = 2}, 3}}) {
      layouts.push_back(layout);
      layouts.back().documents = documents;
      layouts.push_back(layout);
      layouts.back().ring = true;  // which gathers where there are documents
    }
  check_against_one_rank(model, layouts);
}

TEST_CASE("context parallelism trains models with experts and latent attention on every mesh", "[.]") {
  const char* model = GENERATE("deepseek_v3", "qwen3_moe", "llama4");
  check_against_one_rank(model, {{2, {.cp = 2}, 3},
                                 {2, {.cp = 2}, 1, true, true},
                                 {4, {.cp = 2}},
                                 {2, {.cp = 2, .ep = 2}},
                                 {4, {.cp = 2, .ep = 2}, 3},
                                 {.ranks = 4, .mesh = {.cp = 2, .ep = 2}, .accumulation = 3, .ring = true},
                                 {4, {.cp = 2, .ep = 4}}});
}

TEST_CASE("the bits of context parallelism do not depend on recomputation, resharding and transport") {
  const bool ring = GENERATE(false, true);
  const ContextLayout layout{
      .ranks = 2, .mesh = {.cp = 2}, .accumulation = 2, .documents = !ring, .ring = ring};
  CAPTURE(ring);
  const auto train = [&](const auto& change) {
    TinyJob job = job_with_parts("llama3", layout);
    change(job);
    return train_parts(layout.ranks, job, 3);
  };
  const std::vector<TinyStep> plain = train([](TinyJob&) {});
  CHECK(train([](TinyJob&) {}) == plain);  // a second run
  for (const ActivationCheckpoint mode :
       {ActivationCheckpoint::kFull, ActivationCheckpoint::kSelectiveOp, ActivationCheckpoint::kElementwise})
    CHECK(train([&](TinyJob& job) { job.checkpoint = mode; }) == plain);
  CHECK(train([](TinyJob& job) { job.reshard_after_forward = false; }) == plain);
  CHECK(train([](TinyJob& job) { job.shared_memory = false; }) == plain);
}

TEST_CASE("context parallel ranks exchange keys, values and their gradients as planned and nothing else") {
  constexpr int64_t kKvHeads = 2, kHeadDim = 6, kLayers = 3;
  // What a rank sends through its group: bytes and calls of gathers, and of sums.
  const auto sent = [](int ranks, const TinyJob& job) {
    const auto all = run_ranks(ranks, [=](const Environment& environment) {
      TinyTraining training(job, environment);
      training.ledger().reset();
      training.step(0);
      for (const auto& [key, entry] : training.ledger().entries())
        if (key.first.starts_with("cp/") && key.second != "all_gather" && key.second != "reduce_scatter")
          throw std::runtime_error("the group exchanged more: " + key.second);
      std::vector<int64_t> numbers;
      for (const char* operation : {"all_gather", "reduce_scatter"}) {
        const auto [calls, bytes] =
            training.ledger().entry(training.groups().get(MeshDim::kCp).name(), operation);
        numbers.insert(numbers.end(), {bytes, calls});
      }
      return numbers;
    });
    for (const auto& rank : all) CHECK(rank == all.front());
    return all.front();
  };
  for (const ContextLayout& layout : {ContextLayout{2, {.cp = 2}},
                                      {4, {.cp = 4}},
                                      {2, {.cp = 2}, 3, false},
                                      {4, {.cp = 2, .tp = 2}},
                                      {4, {.dp_shard = 2, .cp = 2}}})
    for (const ActivationCheckpoint mode : {ActivationCheckpoint::kNone, ActivationCheckpoint::kFull}) {
      CAPTURE(layout.ranks, layout.mesh.cp, layout.mesh.tp, layout.accumulation, static_cast<int>(mode));
      TinyJob job = job_with_parts("llama3", layout);
      job.checkpoint = mode;
      job.compute = at::kBFloat16;
      const int64_t rows = TinyTraining::kGlobalBatch / std::max(layout.mesh.dp_shard, 1);
      const int64_t k = 2 * rows * TinyTraining::kSeqLen * kKvHeads * kHeadDim / layout.mesh.tp;
      const int64_t others = k * (layout.mesh.cp - 1) / layout.mesh.cp,
                    calls = kLayers * (layout.head_tail ? 2 : 1) * layout.accumulation;
      // Two bytes in forward and in backward, and sums of four.
      CHECK(sent(layout.ranks, job) ==
            std::vector<int64_t>{kLayers * 2 * 2 * others, 2 * calls, kLayers * 4 * others, calls});
    }
}

}  // namespace hyperion::parallel
