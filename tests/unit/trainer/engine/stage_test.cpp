// The units' steps on one rank, where nothing is gathered or reduced: against the plain model and autograd.
#include "trainer/engine/stage.h"

#include <algorithm>
#include <limits>
#include <set>

#include <catch2/catch.hpp>

#include <ATen/Context.h>
#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include "models/flavors/registry.h"
#include "models/init.h"
#include "trainer/engine/schedule.h"

namespace hyperion::trainer {

using at::Tensor;

namespace {

models::ModelArgs small(const std::string& name) {
  models::ModelOverrides dimensions = {
      .dim = 12, .n_layers = 3, .n_heads = 3, .vocab_size = 19, .hidden_dim = 25};
  if (name == "deepseek_v3") {
    dimensions.kv_lora_rank = 5;
    dimensions.qk_nope_head_dim = dimensions.qk_rope_head_dim = 2;
    dimensions.v_head_dim = 3;
    dimensions.q_lora_rank = 6;
  } else {
    dimensions.n_kv_heads = 1;
    dimensions.head_dim = 4;
  }
  const bool qwen3_moe = name == "qwen3_moe";
  if (name == "deepseek_v3" || name == "llama4" || qwen3_moe) {
    dimensions.num_experts = 4;
    dimensions.moe_hidden_dim = 7;
    dimensions.top_k = name == "llama4" ? 1 : 2;
  }
  return models::model_args(qwen3_moe ? "qwen3" : name, qwen3_moe ? "debugmodel_moe" : "debugmodel",
                            dimensions);
}

struct OneRank {
  models::Transformer model;
  std::unique_ptr<parallel::Communicator> shard = parallel::make_solo_communicator("fsdp/0", 0);
  std::unique_ptr<parallel::Communicator> replicate = parallel::make_solo_communicator("dp_replicate/0", 0);
  parallel::FsdpContext context;
  Stage stage;
  ScheduleRunner schedule{stage, ScheduleOptions{}};

  explicit OneRank(const char* name,
                   models::ActivationCheckpoint checkpoint = models::ActivationCheckpoint::kNone,
                   at::ScalarType compute = at::kFloat)
      : model(small(name)),
        context(parallel::Mesh({}, 1), 0, *shard, *replicate, {.compute_dtype = compute}),
        stage(model, context, {.blocks = {3, checkpoint}}) {
    for (const parallel::ShardedParameterPtr& parameter : stage.parameters()) {
      Tensor master = parameter->master();
      models::initialize(parameter->parameter(), 1, parameter->box(), master);
      parameter->compute_shard().copy_(master);
    }
    stage.weights_changed();
  }
  models::Microbatch batch(int seed) const {
    at::manual_seed(seed);
    Tensor labels = at::randint(19, {2, 7}, at::kLong);
    labels.index_put_({0, 3}, -100);
    return {at::randint(19, {2, 7}, at::kLong), labels, model.context(7, at::kCPU)};
  }
  std::vector<Tensor> step(const std::vector<models::Microbatch>& batches, double scale,
                           models::LayerMetrics* metrics = nullptr) {
    return schedule.train_step(
        1, batches.size(), [&](size_t i) { return batches[i]; }, at::full({}, scale), metrics);
  }
  std::vector<Tensor> gradients() const {
    std::vector<Tensor> all;
    for (const parallel::ShardedParameterPtr& parameter : stage.parameters())
      all.push_back(parameter->grad().clone());
    return all;
  }
};

struct LossAndGradients {
  double loss;
  std::vector<Tensor> gradients;
};

// The same weights in a model that no unit's step touches.
LossAndGradients plain(const char* name, const OneRank& rank, const models::Microbatch& batch, double scale) {
  const models::Transformer model(small(name));
  const auto parameters = model.parameters();
  for (size_t i = 0; i < parameters.size(); ++i)
    parameters[i]->weight = rank.stage.parameters()[i]->master().clone().requires_grad_();
  Tensor x = model.embedding().forward(batch.tokens);
  for (const models::TransformerBlock& block : model.blocks()) x = block.forward(x, batch.context);
  const auto [loss, grad, z_loss] = model.head().loss_and_grad(x.detach(), batch.labels, at::full({}, scale));
  torch::autograd::backward({x}, {grad});
  std::vector<Tensor> gradients;
  for (const ParameterPtr& parameter : parameters) gradients.push_back(parameter->weight.grad());
  return {loss.item<double>(), gradients};
}

}  // namespace

TEST_CASE("one rank has the loss and the gradients of the plain model") {
  const char* name = GENERATE("llama3", "qwen3");  // qwen3: the head's weight is the embedding's
  const auto checkpoint =
      GENERATE(models::ActivationCheckpoint::kNone, models::ActivationCheckpoint::kFull,
               models::ActivationCheckpoint::kSelectiveOp, models::ActivationCheckpoint::kElementwise);
  OneRank rank(name, checkpoint);
  const models::Microbatch batch = rank.batch(3);
  const double loss = rank.step({batch}, 0.25)[0].item<double>();
  const auto expected = plain(name, rank, batch, 0.25), unscaled = plain(name, rank, batch, 1);
  CHECK(loss == Approx(expected.loss));
  CHECK(loss == Approx(unscaled.loss));  // of the sum; the scale is the gradients'
  const auto gradients = rank.gradients();
  REQUIRE(gradients.size() == expected.gradients.size());
  for (size_t i = 0; i < gradients.size(); ++i) {
    CAPTURE(name, rank.stage.parameters()[i]->parameter().fqn);
    CHECK(at::allclose(gradients[i], expected.gradients[i], 1e-5, 1e-7));
    CHECK(gradients[i].abs().max().item<double>() > 0);
  }
}

TEST_CASE("gradients of microbatches add up and those of the next step replace them") {
  OneRank rank("llama3");
  const models::Microbatch first = rank.batch(3), second = rank.batch(4);
  rank.step({first}, 0.5);
  const auto alone = rank.gradients();
  rank.step({second, first}, 0.5);
  const auto both = rank.gradients(), rest = plain("llama3", rank, second, 0.5).gradients;
  for (size_t i = 0; i < both.size(); ++i) CHECK(at::allclose(both[i], alone[i] + rest[i], 1e-5, 1e-7));
}

TEST_CASE("the loss alone is that of a training step and leaves gradients as they are") {
  OneRank rank("llama3");
  const models::Microbatch batch = rank.batch(3);
  CHECK(rank.schedule.losses(1, [&](size_t) { return batch; })[0].item<double>() ==
        Approx(plain("llama3", rank, batch, 1).loss));
  for (const Tensor& gradient : rank.gradients()) CHECK(gradient.abs().max().item<double>() == 0);
  CHECK_THROWS_WITH(rank.schedule.losses(2, [&](size_t) { return batch; }),
                    Catch::Contains("losses of 2 microbatches without a pipeline"));
}

TEST_CASE("a layer reports each microbatch once, whatever is recomputed") {
  const auto checkpoint =
      GENERATE(models::ActivationCheckpoint::kNone, models::ActivationCheckpoint::kFull,
               models::ActivationCheckpoint::kSelectiveOp, models::ActivationCheckpoint::kElementwise);
  OneRank rank("llama3", checkpoint);
  const std::vector<models::Microbatch> batches = {rank.batch(3), rank.batch(4)};
  models::LayerMetrics metrics{.activations = true}, nothing_asked;
  rank.step(batches, 0.5, &nothing_asked);
  const auto gradients = rank.gradients();
  rank.step(batches, 0.5, &metrics);
  CHECK(nothing_asked.by_tag.empty());
  for (size_t i = 0; i < gradients.size(); ++i) CHECK(rank.gradients()[i].equal(gradients[i]));

  REQUIRE(metrics.by_tag.size() == 3 + 1);
  CHECK(metrics.by_tag.at("activations/max").values.size() == 3 * batches.size());
  models::Transformer model(small("llama3"));
  for (size_t i = 0; i < model.parameters().size(); ++i)
    model.parameters()[i]->weight = rank.stage.parameters()[i]->master();
  for (size_t microbatch = 0; microbatch < batches.size(); ++microbatch) {
    Tensor x = model.embedding().forward(batches[microbatch].tokens);
    for (size_t layer = 0; layer < 3; ++layer) {
      x = model.blocks()[layer].forward(x, batches[microbatch].context);
      const auto& rms = metrics.by_tag.at("activations/rms/layers." + std::to_string(layer)).values;
      REQUIRE(rms.size() == batches.size());
      CHECK(rms[microbatch].item<double>() == Approx(x.square().mean().sqrt().item<double>()));
      CHECK(metrics.by_tag.at("activations/max").values[microbatch * 3 + layer].item<double>() ==
            x.abs().max().item<double>());
    }
  }
}

TEST_CASE("tokens of experts are counted for biases that move, else in steps that are logged alone") {
  const std::string name = GENERATE("deepseek_v3", "qwen3_moe");
  OneRank rank(name.c_str(), models::ActivationCheckpoint::kFull);
  const models::Microbatch batch = rank.batch(3);
  const std::vector<models::ExpertBalancePtr> balances = rank.stage.balances();
  const int64_t slots = batch.tokens.numel() * 2 * static_cast<int64_t>(balances.size());
  const auto take_counted = [&] {
    int64_t tokens = 0;
    for (const models::ExpertBalancePtr& balance : balances) {
      tokens += balance->counts.sum().item<int64_t>();
      balance->counts.zero_();
    }
    return tokens;
  };
  const bool moves = balances.front()->coefficient > 0;
  CHECK(moves == (name == "deepseek_v3"));
  models::LayerMetrics logged;
  for (models::LayerMetrics* metrics : {static_cast<models::LayerMetrics*>(nullptr), &logged}) {
    rank.schedule.losses(1, [&](size_t) { return batch; });
    CHECK(take_counted() == 0);  // a validation
    rank.step({batch, batch}, 0.5, metrics);
    CHECK(take_counted() == (moves || metrics != nullptr ? 2 * slots : 0));
  }
}

TEST_CASE("weights are unit by unit and a tied table is there once") {
  for (const char* name : {"llama3", "qwen3"}) {
    const OneRank rank(name);
    CHECK(rank.stage.groups().size() == 3 + 2);
    std::set<std::string> names;
    for (const parallel::ShardedParameterPtr& parameter : rank.stage.parameters())
      CHECK(names.insert(parameter->parameter().fqn).second);
    CHECK(names.size() == rank.model.parameters().size());
  }
}

TEST_CASE("a model in two stages has the bits of one") {
  const auto checkpoint = GENERATE(models::ActivationCheckpoint::kNone, models::ActivationCheckpoint::kFull);
  OneRank whole("llama3", checkpoint);
  const models::Microbatch batch = whole.batch(3);
  const Tensor loss = whole.step({batch}, 0.25)[0];

  OneRank parts("llama3", checkpoint);  // its model's units, in two stages of their own
  const UnitRange front_units{0, 2}, back_units{2, 5};
  Stage first(parts.model, {front_units}, parts.context, {.blocks = {3, checkpoint}}),
      second(parts.model, {back_units}, parts.context, {.blocks = {3, checkpoint}});
  for (Stage* stage : {&first, &second}) {
    for (const parallel::ShardedParameterPtr& parameter : stage->parameters()) {
      Tensor master = parameter->master();
      models::initialize(parameter->parameter(), 1, parameter->box(), master);
    }
    stage->weights_changed();
  }
  MicrobatchState front = first.start_microbatch(front_units, batch, /*for_backward=*/true),
                  back = second.start_microbatch(back_units, batch, /*for_backward=*/true);
  first.forward(0, front);
  first.forward(1, front);
  back.activation = front.activation;
  second.forward(2, back);
  second.forward(3, back);
  CHECK(second.loss(back, at::full({}, 0.25)).equal(loss));
  second.backward(3, back);
  second.backward(2, back);
  front.gradient = back.gradient;
  first.backward(1, front);
  first.backward(0, front);
  for (Stage* stage : {&first, &second})
    for (const auto& group : stage->groups()) group->reduce(true);
  size_t i = 0;
  for (Stage* stage : {&first, &second})
    for (const parallel::ShardedParameterPtr& parameter : stage->parameters())
      CHECK(parameter->grad().equal(whole.gradients()[i++]));
}

TEST_CASE("the first half of a backward makes no gradient of a matrix") {
  const char* name = GENERATE("llama3", "deepseek_v3", "llama4");
  const OneRank rank(name);
  const models::TransformerBlock& block = rank.model.blocks()[1];
  const Tensor x = at::randn({2, 7, 12}).requires_grad_();
  models::DeferredWeights deferred;
  const Tensor y = block.forward(x, rank.batch(3).context, {.deferred = &deferred});
  deferred.set_deferring(true);
  torch::autograd::backward({y}, {at::ones_like(y)});
  for (const ParameterPtr& parameter : block.parameters()) {
    CAPTURE(name, parameter->fqn);
    CHECK(parameter->weight.grad().defined() == (parameter->shape.size() == 1));
  }
  deferred.make_all();
  for (const ParameterPtr& parameter : block.parameters()) CHECK(parameter->weight.grad().defined());
}

TEST_CASE("a block makes no gradient of frozen weights and the same bits of the others and of its input") {
  const char* name = GENERATE("llama3", "qwen3", "deepseek_v3", "llama4");
  const size_t step = GENERATE(1, 2);  // all weights, or every second one
  const OneRank rank(name);
  const models::TransformerBlock& block = rank.model.blocks()[1];
  const std::vector<ParameterPtr> parameters = block.parameters();
  const models::Microbatch batch = rank.batch(3);
  const Tensor input = at::randn({2, 7, 12});
  const auto gradients = [&](bool in_halves) {
    for (const ParameterPtr& parameter : parameters) parameter->weight.mutable_grad().reset();
    const Tensor x = input.clone().requires_grad_();
    models::DeferredWeights deferred;
    const Tensor y = block.forward(x, batch.context, {.deferred = &deferred});
    deferred.set_deferring(in_halves);
    torch::autograd::backward({y}, {at::ones_like(y)});
    const bool all_frozen =
        std::ranges::none_of(parameters, [](const ParameterPtr& one) { return one->trainable; });
    CHECK(deferred.empty() == (!in_halves || all_frozen));
    deferred.make_all();
    std::vector<Tensor> all = {x.grad()};
    for (const ParameterPtr& parameter : parameters) all.push_back(parameter->weight.grad());
    return all;
  };
  const std::vector<Tensor> expected = gradients(false);
  for (size_t i = 0; i < parameters.size(); i += step) {
    parameters[i]->trainable = false;
    parameters[i]->weight.requires_grad_(false);
  }
  for (const bool in_halves : {false, true}) {
    const std::vector<Tensor> found = gradients(in_halves);
    CHECK(found[0].equal(expected[0]));
    for (size_t i = 0; i < parameters.size(); ++i) {
      CAPTURE(name, parameters[i]->fqn);
      if (parameters[i]->trainable)
        CHECK(found[i + 1].equal(expected[i + 1]));
      else
        CHECK_FALSE(found[i + 1].defined());
    }
  }
}

TEST_CASE("a backward in halves has the bits of one, and between them neither graph nor weights") {
  const auto checkpoint =
      GENERATE(models::ActivationCheckpoint::kNone, models::ActivationCheckpoint::kFull,
               models::ActivationCheckpoint::kSelectiveOp, models::ActivationCheckpoint::kElementwise);
  const auto compute = GENERATE(at::kFloat, at::kBFloat16);
  const char* name = GENERATE("llama3", "qwen3", "deepseek_v3", "llama4");
  OneRank undivided(name, checkpoint, compute), halves(name, checkpoint, compute);
  const std::vector<models::Microbatch> batches = {undivided.batch(3), undivided.batch(4)};
  const std::vector<Tensor> losses = undivided.step(batches, 0.25);

  const Stage& stage = halves.stage;
  std::vector<MicrobatchState> states;
  const size_t head = 3 + 1;
  for (size_t i = 0; i < batches.size(); ++i) {
    MicrobatchState& state =
        states.emplace_back(stage.start_microbatch({0, head + 1}, batches[i], /*for_backward=*/true));
    for (size_t unit = 0; unit < head; ++unit) stage.forward(unit, state);
    for (const SavedForward& saved : state.saved)
      CHECK(saved.attention == nullptr);  // which ranks that share sequences keep
  }
  const bool tied = halves.model.args().tied;
  for (size_t i = 0; i < batches.size(); ++i) {
    std::vector<c10::weak_intrusive_ptr<at::TensorImpl>> inputs;  // of blocks; each node leads to one
    for (size_t unit = 1; unit < head; ++unit)
      inputs.emplace_back(states[i].saved[unit].input.getIntrusivePtr());
    CHECK(stage.loss(states[i], at::full({}, 0.25)).equal(losses[i]));
    stage.group(head).reduce(false);
    for (size_t unit = head; unit-- > 0;) stage.input_gradient(unit, states[i]);
    for (const auto& input : inputs) CHECK(input.expired());
    for (const SavedForward& saved : states[i].saved) CHECK_FALSE(saved.output.defined());
    CHECK(states[i].keeps_saved());
    for (const ParameterPtr& parameter : halves.model.parameters())
      CHECK_FALSE(parameter->weight.grad().defined());
  }
  for (const parallel::ShardedParameterPtr& parameter : stage.parameters())
    parameter->compute_shard().fill_(std::numeric_limits<double>::quiet_NaN());
  for (MicrobatchState& state : states) {
    for (size_t unit = head; unit-- > 0;) {
      stage.weight_gradients(unit, state);
      stage.group(unit).reduce(false);
    }
    CHECK_FALSE(state.keeps_saved());
  }
  for (size_t i = 0; i < undivided.gradients().size(); ++i) {
    CAPTURE(stage.parameters()[i]->parameter().fqn);
    // Of a tied table both heads' gradients come first here.
    if (tied && i == 0)
      CHECK(at::allclose(halves.gradients()[i], undivided.gradients()[i], 1e-4, 1e-6));
    else
      CHECK(halves.gradients()[i].equal(undivided.gradients()[i]));
  }
}

}  // namespace hyperion::trainer
