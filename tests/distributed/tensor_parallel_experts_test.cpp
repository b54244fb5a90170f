// Models with experts under tensor parallelism, alone and with expert parallelism, FSDP and pipelines, on a
// CPU: the choices of one rank as integers, its losses, norms and each parameter's gradient to rounding.
#include <cmath>
#include <map>

#include <catch2/catch.hpp>

#include <ATen/core/grad_mode.h>

#include "tests/support/gradients.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"
#include "tests/support/unwritten_is_nan.h"

namespace hyperion::parallel {
namespace {

constexpr int64_t kExpertSteps = 10;

TinyJob with_experts(const char* model, int64_t experts, MeshConfig mesh = {}, int64_t accumulation = 1) {
  return {.model = model,
          .mesh = mesh,
          .accumulation = accumulation,
          .heads = 4,
          .kv_heads = 2,
          .experts = experts};
}

// What a rank has found; `of`: a parameter's or a block's number.
struct FoundNumber {
  enum class What { kGradient, kLoss, kNorm, kTokens, kBias } what;
  int64_t of, index;
  double value;
};
using What = FoundNumber::What;
using FoundNumbers = std::map<std::pair<int64_t, int64_t>, double>;  // by `of` and index

// The gradients of the first step and the tokens that each expert got in it, the losses and norms of 10, and
// then the biases: of all ranks together, equal where several have a number.
std::map<What, FoundNumbers> train_experts(int ranks, const TinyJob& job) {
  const auto all = run_ranks(ranks, [=](const Environment& environment) {
    TinyTraining training(job, environment);
    std::vector<FoundNumber> numbers;
    for (const auto& [parameter, element, value] : training.first_gradients())
      numbers.push_back({What::kGradient, parameter, element, value});
    const std::vector<models::ExpertBalancePtr> blocks = training.model().balances();
    const auto add = [&](What what, const models::ExpertBalancePtr& balance, const at::Tensor& of_experts) {
      const int64_t block = std::ranges::find(blocks, balance) - blocks.begin();
      for (int64_t expert = 0; expert < of_experts.numel(); ++expert)
        numbers.push_back({what, block, expert, of_experts[expert].item<double>()});
    };
    for (const models::ExpertBalancePtr& balance : training.stage().balances()) {
      training.groups().get(MeshDim::kFsdp).all_reduce_sum(balance->counts);
      if (balance->counts_local_tokens) training.groups().get(MeshDim::kTp).all_reduce_sum(balance->counts);
      add(What::kTokens, balance, balance->counts);
      balance->counts.zero_();
    }
    for (int64_t i = 0; i < kExpertSteps; ++i) {
      const TinyStep step = training.step(i);
      numbers.insert(numbers.end(), {{What::kLoss, 0, i, step.loss}, {What::kNorm, 0, i, step.grad_norm}});
    }
    training.audit_replicas();
    for (const models::ExpertBalancePtr& balance : training.stage().balances())
      add(What::kBias, balance, balance->bias->weight);
    return numbers;
  });
  std::map<What, FoundNumbers> found;
  for (const std::vector<FoundNumber>& of_rank : all)
    for (const auto& [what, of, index, value] : of_rank)
      if (found[what].try_emplace({of, index}, value).first->second != value)
        throw std::runtime_error("two ranks have different numbers for one gradient, count, loss or bias");
  return found;
}

double largest_relative(const FoundNumbers& found, const FoundNumbers& expected) {
  double largest = found.size() == expected.size() ? 0 : INFINITY;
  for (const auto& [key, value] : expected)
    largest = larger_of(largest, std::abs(found.at(key) - value) / std::abs(value));
  return largest;
}

struct ExpertLayout {
  int ranks;
  MeshConfig mesh;
  int64_t accumulation = 1;
};

void check_against_one_rank(const char* model, int64_t experts, const std::vector<ExpertLayout>& layouts) {
  std::map<What, FoundNumbers> one = train_experts(1, with_experts(model, experts));
  REQUIRE(one[What::kTokens].size() >= static_cast<size_t>(experts));
  for (const auto& [ranks, mesh, accumulation] : layouts) {
    CAPTURE(model, ranks, mesh.pp, mesh.dp_shard, mesh.tp, mesh.ep, mesh.etp, accumulation);
    std::map<What, FoundNumbers> found =
        train_experts(ranks, with_experts(model, experts, mesh, accumulation));
    CHECK(found[What::kTokens] == one[What::kTokens]);
    CHECK(found[What::kBias] == one[What::kBias]);
    CHECK(largest_relative(found[What::kLoss], one[What::kLoss]) < 1e-6);
    CHECK(largest_relative(found[What::kNorm], one[What::kNorm]) < 2e-5);
    CHECK(farthest_gradient(found[What::kGradient], one[What::kGradient]) < 1e-5);
  }
}

}  // namespace

TEST_CASE("experts and latent attention under tensor parallelism choose and train as on one rank") {
  check_against_one_rank("deepseek_v3", 5,
                         {{2, {.dp_shard = 1, .tp = 2}},
                          {4, {.dp_shard = 2, .tp = 2}, 3},
                          {4, {.pp = 2, .dp_shard = 1, .tp = 2}, 6}});
}

TEST_CASE("experts of every block, or of every second one, under tensor parallelism train as on one rank") {
  check_against_one_rank("qwen3_moe", 5, {{2, {.dp_shard = 1, .tp = 2}}});
  check_against_one_rank("llama4", 5, {{4, {.dp_shard = 2, .tp = 2}}});
}

TEST_CASE("expert parallelism in a pipeline and with tensor parallelism chooses and trains as on one rank") {
  check_against_one_rank("deepseek_v3", 4,
                         {
                             {4, {.pp = 2, .dp_shard = 2, .ep = 2}, 6},
                             {2, {.dp_shard = 1, .tp = 2, .ep = 2}},
                             {4, {.dp_shard = 2, .tp = 2, .ep = 2}, 3},  // efsdp 2
                             {4, {.dp_shard = 2, .tp = 2, .ep = 4}},
                             {4, {.dp_shard = 2, .tp = 2, .ep = 2, .etp = 2}, 3},
                             {4, {.pp = 2, .dp_shard = 1, .tp = 2, .ep = 2}, 6},
                         });
  check_against_one_rank("qwen3_moe", 4, {{2, {.dp_shard = 1, .tp = 2, .ep = 2}}});
  check_against_one_rank("llama4", 2,  // a rank's expert divided by tensor parallel ranks, then over efsdp 2
                         {{8, {.dp_shard = 4, .tp = 2, .ep = 2, .etp = 2}}});
}

TEST_CASE("checkpointing and transports change no bit of experts under tensor parallelism") {
  const auto train = [](const TinyJob& job) {
    return run_ranks(2, [=](const Environment& environment) { return train_tiny(job, environment, 4); });
  };
  const TinyJob base = with_experts("deepseek_v3", 4, {.dp_shard = 1, .tp = 2, .ep = GENERATE(1, 2)}, 2);
  const auto plain = train(base);
  for (const models::ActivationCheckpoint mode :
       {models::ActivationCheckpoint::kFull, models::ActivationCheckpoint::kSelectiveOp,
        models::ActivationCheckpoint::kElementwise}) {
    TinyJob job = base;
    job.checkpoint = mode;
    CHECK(train(job) == plain);
  }
  TinyJob over_sockets = base;
  over_sockets.shared_memory = false;
  CHECK(train(over_sockets) == plain);
}

TEST_CASE("rows that are dealt round robin reach experts also where they are no multiple of these") {
  // Each of two ranks deals 96 rows.
  const auto [experts, mesh] =
      GENERATE(std::pair(5, MeshConfig{.dp_shard = 1, .tp = 2}), std::pair(10, MeshConfig{.ep = 2}));
  TinyJob job = with_experts("deepseek_v3", experts, mesh);
  job.balanced = true;
  for (const std::vector<TinyStep>& rank : run_ranks(2, [=](const Environment& environment) {
         const UnwrittenIsNaN guard;
         return train_tiny(job, environment, 2);
       }))
    for (const TinyStep& step : rank) CHECK((std::isfinite(step.loss) && std::isfinite(step.grad_norm)));
}

TEST_CASE("a router's gate whose gradient is not added up over tensor parallel ranks is found") {
  TinyJob wrong = with_experts("deepseek_v3", 4, {.dp_shard = 1, .tp = 2, .ep = GENERATE(1, 2)});
  wrong.omit_replicated_sum = true;
  const auto audited = run_ranks_outcome(2, [wrong](const Environment& environment) {
    TinyTraining training(wrong, environment);
    training.step(0);
    const at::NoGradGuard no_grad;  // all else becomes equal: ten tensors are named
    const std::vector<ShardedParameterPtr> parameters = training.stage().parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i]->parameter().fqn.ends_with("router.gate.weight")) continue;
      parameters[i]->master().zero_();
      for (const at::Tensor& moment : training.optimizer().states(i)) moment.zero_();
    }
    training.audit_replicas();
  });
  for (const RankOutcome& rank : audited) {
    CHECK(rank.exit_code == 70);
    CHECK_THAT(rank.error, Catch::Contains("layers.1.moe.router.gate.weight: rank") && Catch::Contains("tp"));
  }
}

}  // namespace hyperion::parallel
