// Frozen parameters: what they leave out of a step on one rank and on several, and that nothing else changes.
#include <stdexcept>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include "tests/distributed/step_traffic.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"

namespace hyperion::parallel {
namespace {

struct FrozenLayout {
  const char* model;
  int ranks;
  MeshConfig mesh;
  models::ActivationCheckpoint checkpoint = models::ActivationCheckpoint::kNone;
  int64_t accumulation = 1;
  bool pack_weights = false;
};

TinyJob job_of(const FrozenLayout& layout, int64_t frozen_from) {
  return {.model = layout.model,
          .mesh = layout.mesh,
          .checkpoint = layout.checkpoint,
          .accumulation = layout.accumulation,
          .pack_weights = layout.pack_weights,
          .heads = 4,
          .kv_heads = 2,
          .experts = 4,
          .frozen_from = frozen_from};
}

}  // namespace

TEST_CASE("frozen parameters stay to the bit and the others have the gradients of a run that trains all") {
  using models::ActivationCheckpoint;
  const FrozenLayout layout = GENERATE(
      FrozenLayout{"llama3", 1, {}}, FrozenLayout{"llama3", 2, {}},
      FrozenLayout{"llama3", 2, {}, ActivationCheckpoint::kFull, 2},
      FrozenLayout{"llama3", 2, {.dp_replicate = 2, .dp_shard = 1}},
      FrozenLayout{"llama3", 2, {.dp_shard = 1, .tp = 2}}, FrozenLayout{"llama3", 2, {.pp = 2}, {}, 2},
      FrozenLayout{"qwen3", 2, {}}, FrozenLayout{"qwen3", 2, {.pp = 2}, {}, 2},  // a tied head
      FrozenLayout{"deepseek_v3", 1, {}},
      FrozenLayout{"deepseek_v3", 2, {}, ActivationCheckpoint::kSelectiveOp},
      FrozenLayout{"deepseek_v3", 2, {.ep = 2}});
  const int64_t first = GENERATE(0, 1);
  CAPTURE(layout.model, layout.ranks, layout.mesh.tp, layout.mesh.pp, layout.mesh.ep, first);
  const auto gradients = [&](int64_t frozen_from) {
    return run_ranks(layout.ranks, [=](const Environment& environment) {
      return TinyTraining(job_of(layout, frozen_from), environment).first_gradients();
    });
  };
  const auto all = gradients(-1), some = gradients(first);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::vector<TinyTraining::GradientElement> expected = all[rank];
    std::erase_if(expected, [&](const auto& element) { return element.parameter % 2 == first; });
    CHECK(expected.size() < all[rank].size());
    CHECK((some[rank] == expected));
  }
  const auto trained = run_ranks(layout.ranks, [=](const Environment& environment) {
    TinyTraining training(job_of(layout, first), environment);
    std::vector<at::Tensor> before;
    for (const ShardedParameterPtr& parameter : training.stage().parameters())
      before.push_back(parameter->master().clone());
    std::vector<TinyStep> steps;
    for (int64_t step = 0; step < 8; ++step) steps.push_back(training.step(step));
    training.audit_replicas();
    for (size_t i = 0; i < before.size(); ++i) {
      const ShardedParameter& parameter = *training.stage().parameters()[i];
      const bool trains = parameter.parameter().trainable;
      if (before[i].numel() > 0 && parameter.master().equal(before[i]) == trains)
        throw std::runtime_error(parameter.parameter().fqn + (trains ? " did not change" : " changed"));
      if (!trains && (parameter.grad().defined() || !training.optimizer().states(i).empty()))
        throw std::runtime_error(parameter.parameter().fqn + " has a gradient or states");
    }
    return steps;
  });
  CHECK(trained.front().back().loss < trained.front().front().loss);
}

TEST_CASE("frozen parameters are gathered as others and are no part of what is reduced") {
  const bool shared_memory = GENERATE(true, false);
  const auto sent = run_ranks(4, [=](const Environment& environment) {
    TinyTraining training({.mesh = {.dp_replicate = 2}, .shared_memory = shared_memory, .frozen_from = 1},
                          environment);
    return traffic_of_step(training);
  });
  for (const StepTraffic& rank : sent) {
    CHECK(rank.trained < 0.7 * static_cast<double>(rank.padded));
    CHECK(rank.all_gather == 4 * (rank.padded + rank.of_blocks) / 2);
    CHECK(rank.reduce_scatter == 4 * rank.trained / 2);
    CHECK(rank.all_reduce == 4 * rank.trained / 2);
  }
}

}  // namespace hyperion::parallel
