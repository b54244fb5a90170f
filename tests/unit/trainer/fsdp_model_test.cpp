// The units' steps on one rank, where nothing is gathered or reduced: against the plain model and autograd.
#include "trainer/fsdp_model.h"

#include <set>

#include <catch2/catch.hpp>

#include <ATen/Context.h>
#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <torch/csrc/autograd/autograd.h>

#include "models/flavors/registry.h"
#include "models/init.h"

namespace hyperion::trainer {

using at::Tensor;

namespace {

models::ModelArgs small(const char* name) {
  return models::model_args(name, "debugmodel",
                            {.dim = 12,
                             .n_layers = 3,
                             .n_heads = 3,
                             .n_kv_heads = 1,
                             .head_dim = 4,
                             .vocab_size = 19,
                             .hidden_dim = 25});
}

struct OneRank {
  models::Transformer model;
  std::unique_ptr<parallel::Communicator> shard = parallel::make_solo_communicator("fsdp/0", 0);
  std::unique_ptr<parallel::Communicator> replicate = parallel::make_solo_communicator("dp_replicate/0", 0);
  parallel::FsdpContext context;
  FsdpModel fsdp;

  explicit OneRank(const char* name,
                   models::ActivationCheckpoint checkpoint = models::ActivationCheckpoint::kNone)
      : model(small(name)),
        context(*shard, *replicate, {.compute_dtype = at::kFloat}),
        fsdp(model, context, {.checkpointing = {std::vector<models::ActivationCheckpoint>(3, checkpoint)}}) {
    for (const parallel::ShardedParameterPtr& parameter : fsdp.parameters()) {
      Tensor master = parameter->master();
      models::initialize(parameter->parameter(), 1, parameter->box(), master);
    }
    fsdp.weights_changed();
    fsdp.begin_step(1);
  }
  models::Microbatch batch(int seed) const {
    at::manual_seed(seed);
    Tensor labels = at::randint(19, {2, 7}, at::kLong);
    labels.index_put_({0, 3}, -100);
    return {at::randint(19, {2, 7}, at::kLong), labels, model.context(7, at::kCPU)};
  }
  std::vector<Tensor> gradients() const {
    std::vector<Tensor> all;
    for (const parallel::ShardedParameterPtr& parameter : fsdp.parameters())
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
    parameters[i]->weight = rank.fsdp.parameters()[i]->master().clone().requires_grad_();
  Tensor x = model.embedding().forward(batch.tokens);
  for (const models::TransformerBlock& block : model.blocks()) x = block.forward(x, batch.context);
  const auto [loss, grad] = model.head().loss_and_grad(x.detach(), batch.labels, at::full({}, scale));
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
  const double loss = rank.fsdp.forward_backward(batch, at::full({}, 0.25), true).item<double>();
  const auto expected = plain(name, rank, batch, 0.25), unscaled = plain(name, rank, batch, 1);
  CHECK(loss == Approx(expected.loss));
  CHECK(loss == Approx(unscaled.loss));  // of the sum; the scale is the gradients'
  const auto gradients = rank.gradients();
  REQUIRE(gradients.size() == expected.gradients.size());
  for (size_t i = 0; i < gradients.size(); ++i) {
    CAPTURE(name, rank.fsdp.parameters()[i]->parameter().fqn);
    CHECK(at::allclose(gradients[i], expected.gradients[i], 1e-5, 1e-7));
    CHECK(gradients[i].abs().max().item<double>() > 0);
  }
}

TEST_CASE("gradients of microbatches add up and those of the next step replace them") {
  OneRank rank("llama3");
  const Tensor scale = at::full({}, 0.5);
  const models::Microbatch first = rank.batch(3), second = rank.batch(4);
  rank.fsdp.forward_backward(first, scale, true);
  const auto alone = rank.gradients();
  rank.fsdp.begin_step(2);
  rank.fsdp.forward_backward(second, scale, false);
  rank.fsdp.forward_backward(first, scale, true);
  const auto both = rank.gradients(), rest = plain("llama3", rank, second, 0.5).gradients;
  for (size_t i = 0; i < both.size(); ++i) CHECK(at::allclose(both[i], alone[i] + rest[i], 1e-5, 1e-7));
}

TEST_CASE("the loss alone is that of a training step and leaves gradients as they are") {
  OneRank rank("llama3");
  const models::Microbatch batch = rank.batch(3);
  CHECK(rank.fsdp.loss_sum(batch).item<double>() == Approx(plain("llama3", rank, batch, 1).loss));
  for (const Tensor& gradient : rank.gradients()) CHECK(gradient.abs().max().item<double>() == 0);
}

TEST_CASE("weights are unit by unit and a tied table is there once") {
  for (const char* name : {"llama3", "qwen3"}) {
    const OneRank rank(name);
    CHECK(rank.fsdp.groups().size() == 3 + 2);
    std::set<std::string> names;
    for (const parallel::ShardedParameterPtr& parameter : rank.fsdp.parameters())
      CHECK(names.insert(parameter->parameter().fqn).second);
    CHECK(names.size() == rank.model.parameters().size());
  }
}

}  // namespace hyperion::trainer
