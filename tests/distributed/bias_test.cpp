// Learned biases of attention under every kind of parallelism on a CPU: equal to one rank in losses and in
// each parameter's gradient, of which those of the biases are not zero.
#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"

namespace hyperion::parallel {
namespace {

using models::ActivationCheckpoint;

constexpr int64_t kBiasSteps = 4;

struct BiasLayout {
  int ranks;
  MeshConfig mesh;
  int64_t accumulation = 1;
};

// wq, wk, wv and wo have biases.
TinyJob biased_job(const BiasLayout& layout, const char* model = "qwen2") {
  return {.model = model,
          .mesh = layout.mesh,
          .accumulation = layout.accumulation,
          .heads = 4,
          .kv_heads = 2,
          .experts = 4,
          .qkv_bias = true,
          .output_bias = true};
}

std::vector<TinyStep> train_biased(int ranks, const TinyJob& job) {
  const auto all = run_ranks(
      ranks, [=](const Environment& environment) { return train_tiny(job, environment, kBiasSteps); });
  for (const auto& rank : all)
    if (rank != all.front()) throw std::runtime_error("the ranks have different losses or norms");
  return all.front();
}

double loss_error(const std::vector<TinyStep>& found, const std::vector<TinyStep>& expected) {
  double largest = 0;
  for (size_t i = 0; i < found.size(); ++i)
    largest = std::max(largest, std::abs(found[i].loss - expected.at(i).loss) / expected[i].loss);
  return largest;
}

using BiasGradients = std::map<int64_t, std::map<int64_t, double>>;  // parameter -> element -> value

BiasGradients gradients_of(int ranks, const TinyJob& job) {
  const auto all = run_ranks(ranks, [=](const Environment& environment) {
    return TinyTraining(job, environment).first_gradients();
  });
  BiasGradients joined;
  for (const auto& rank : all)
    for (const auto& [parameter, element, value] : rank)
      if (const auto [known, added] = joined[parameter].try_emplace(element, value);
          !added && known->second != value)
        throw std::runtime_error("two ranks have different gradients of one element");
  return joined;
}

// Which of the model's parameters are biases.
std::vector<int64_t> biases_of(const TinyJob& job) {
  return run_ranks(1, [=](const Environment& environment) {
    const TinyTraining training(job, environment);
    const std::vector<ParameterPtr> parameters = training.model().parameters();
    std::vector<int64_t> found;
    for (size_t i = 0; i < parameters.size(); ++i)
      if (parameters[i]->fqn.ends_with(".bias")) found.push_back(static_cast<int64_t>(i));
    return found;
  })[0];
}

// The largest relative L2 difference of a parameter's gradient.
double gradient_error(const BiasGradients& found, const BiasGradients& expected) {
  if (found.size() != expected.size()) return INFINITY;
  double largest = 0;
  for (const auto& [parameter, elements] : expected) {
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

TEST_CASE("biases train on every mesh to the losses and gradients of one rank") {
  const std::vector<TinyStep> one = train_biased(1, biased_job({1, {}}));
  const BiasGradients gradients = gradients_of(1, biased_job({1, {}}));
  const std::vector<int64_t> biases = biases_of(biased_job({1, {}}));
  CHECK(biases.size() == 3 * 4);
  for (const int64_t bias : biases) {
    CAPTURE(bias);
    double size = 0;
    for (const auto& [element, value] : gradients.at(bias)) size += std::abs(value);
    CHECK(size > 1e-7);
  }
  for (const BiasLayout& layout : {BiasLayout{2, {}},
                                   {2, {.tp = 2}},
                                   {2, {.cp = 2}},
                                   {2, {.pp = 2}, 2},
                                   {4, {.tp = 2}, 3},
                                   {4, {.dp_replicate = 2, .dp_shard = 2}, 3}}) {
    CAPTURE(layout.ranks, layout.mesh.dp_replicate, layout.mesh.tp, layout.mesh.cp, layout.mesh.pp);
    TinyJob job = biased_job(layout);
    CHECK(loss_error(train_biased(layout.ranks, job), one) < 2e-7);
    CHECK(gradient_error(gradients_of(layout.ranks, job), gradients) < 1e-5);
    if (layout.mesh.pp > 1) continue;
    job.pack_weights = true;
    CHECK(gradient_error(gradients_of(layout.ranks, job), gradients) < 1e-5);
  }
}

TEST_CASE("biases of models with experts train on every mesh to the losses of one rank") {
  const std::vector<TinyStep> one = train_biased(1, biased_job({1, {}}, "qwen3_moe"));
  for (const BiasLayout& layout : {BiasLayout{2, {.ep = 2}}, {2, {.tp = 2, .ep = 2}}})
    CHECK(loss_error(train_biased(layout.ranks, biased_job(layout, "qwen3_moe")), one) < 2e-7);
}

namespace {

// Windows, sinks, biases of attention, router and experts.
TinyJob gpt_oss_job(const BiasLayout& layout) {
  TinyJob job = biased_job(layout, "gpt_oss");
  job.window = 3;
  job.expert_hidden = 8;
  return job;
}

}  // namespace

TEST_CASE("gpt_oss trains on every mesh to the losses and gradients of one rank") {
  const std::vector<TinyStep> one = train_biased(1, gpt_oss_job({1, {}}));
  const BiasGradients gradients = gradients_of(1, gpt_oss_job({1, {}}));
  CHECK(one.back().loss < one.front().loss);
  for (const BiasLayout& layout : {BiasLayout{2, {}},
                                   {2, {.tp = 2}},
                                   {2, {.cp = 2}},
                                   {2, {.ep = 2}},
                                   {2, {.pp = 2}, 3},
                                   {2, {.tp = 2, .ep = 2}},
                                   {4, {.tp = 2, .ep = 2, .etp = 2}},
                                   {4, {.cp = 2, .ep = 2}},
                                   {4, {.ep = 4, .ep_nodes = 2}},
                                   {4, {.dp_replicate = 2, .dp_shard = 2}, 3}}) {
    CAPTURE(layout.ranks, layout.mesh.dp_replicate, layout.mesh.tp, layout.mesh.cp, layout.mesh.pp,
            layout.mesh.ep, layout.mesh.etp);
    CHECK(loss_error(train_biased(layout.ranks, gpt_oss_job(layout)), one) < 2e-7);
    CHECK(gradient_error(gradients_of(layout.ranks, gpt_oss_job(layout)), gradients) < 1e-5);
  }
}

TEST_CASE("recomputation, a deferred wgrad and Muon keep the bits of gpt_oss") {
  for (const bool muon : {false, true}) {
    TinyJob job = gpt_oss_job({2, {.ep = 2}, 2});
    job.muon = muon;
    const std::vector<TinyStep> plain = train_biased(2, job);
    CHECK(plain.back().loss < plain.front().loss);
    for (const ActivationCheckpoint mode : {ActivationCheckpoint::kFull, ActivationCheckpoint::kSelectiveOp,
                                            ActivationCheckpoint::kElementwise}) {
      job.checkpoint = mode;
      CHECK(train_biased(2, job) == plain);
    }
  }
  TinyJob job = gpt_oss_job({2, {.pp = 2}, 3}), whole = gpt_oss_job({1, {}, 3});
  job.layers = whole.layers = 4;
  job.schedule = PipelineKind::kZbvZeroBubble;
  CHECK(loss_error(train_biased(2, job), train_biased(1, whole)) < 2e-7);
}

TEST_CASE("recomputation, resharding, schedules and Muon keep the bits of biases") {
  const BiasLayout layout = GENERATE(BiasLayout{2, {.tp = 2}, 2}, BiasLayout{2, {}, 2});
  CAPTURE(layout.mesh.tp);
  for (const bool muon : {false, true}) {
    TinyJob job = biased_job(layout);
    job.muon = muon;
    const std::vector<TinyStep> plain = train_biased(layout.ranks, job);
    CHECK(plain.back().loss < plain.front().loss);
    for (const ActivationCheckpoint mode : {ActivationCheckpoint::kFull, ActivationCheckpoint::kSelectiveOp,
                                            ActivationCheckpoint::kElementwise}) {
      job.checkpoint = mode;
      CHECK(train_biased(layout.ranks, job) == plain);
      job.reshard_after_forward = false;
    }
  }
  if (layout.mesh.tp > 1) return;
  TinyJob job = biased_job({2, {.pp = 2}, 3});
  job.layers = 4;
  TinyJob whole = biased_job({1, {}, 3});
  whole.layers = 4;
  job.schedule = PipelineKind::kZbvZeroBubble;  // which defers wgrad
  CHECK(loss_error(train_biased(2, job), train_biased(1, whole)) < 2e-7);
}

TEST_CASE("FP8 layers add their biases in high precision on every mesh", "[float8]") {
  const char* recipe = GENERATE("tensorwise", "rowwise");
  const auto job_of = [&](const BiasLayout& layout) {
    TinyJob job = biased_job(layout);
    job.compute = at::kBFloat16;
    job.heads = job.kv_heads = 2;
    job.float8 = recipe;
    return job;
  };
  const std::vector<TinyStep> one = train_biased(1, job_of({1, {}}));
  CHECK(one.back().loss < one.front().loss);
  for (const BiasLayout& layout : {BiasLayout{2, {}}, {2, {.tp = 2}}, {4, {.tp = 2}}}) {
    CAPTURE(recipe, layout.ranks, layout.mesh.tp);
    CHECK(loss_error(train_biased(layout.ranks, job_of(layout)), one) < 5e-3);  // sums in bf16 differ
  }
}

}  // namespace hyperion::parallel
