// gpt_oss's experts: a clamped gate between two grouped products with biases.
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include "models/flavors/registry.h"
#include "models/layers/activation_checkpoint.h"
#include "models/parts/experts/description.h"
#include "models/parts/experts/experts.h"
#include "models/parts/experts/products/expert_chunks.h"
#include "tests/support/group_ends.h"
#include "tests/unit/models/finite_differences.h"

namespace hyperion::models {

using at::Tensor;

namespace {

constexpr int64_t kExperts = 6, kTopK = 2;

ModelArgs clamped_args(bool before = false) {
  ModelArgs args = model_args("qwen3", "debugmodel_moe",
                              {.dim = 16,
                               .n_layers = 2,
                               .n_heads = 4,
                               .n_kv_heads = 2,
                               .head_dim = 4,
                               .vocab_size = 13,
                               .num_experts = kExperts,
                               .moe_hidden_dim = 24,
                               .top_k = kTopK,
                               .score_before_experts = before});
  args.experts.clamped = true;
  return args;
}

// Experts with weights so large that the clamps cut.
Experts random_experts(const ModelArgs& args, at::ScalarType dtype) {
  Experts layer(PartParameters(describe_experts(args), args, 0, {}), args, {});
  at::manual_seed(2);
  for (const ParameterPtr& stack : layer.parameters())
    stack->weight = (at::randn(stack->shape, at::kDouble) * 1.5).to(dtype).requires_grad_();
  return layer;
}

std::vector<Tensor> gradients_of(const Experts& layer) {
  std::vector<Tensor> all;
  for (const ParameterPtr& stack : layer.parameters())
    all.push_back(std::exchange(stack->weight.mutable_grad(), {}));
  return all;
}

}  // namespace

TEST_CASE("gradients of a model with clamped experts equal finite differences") {
  const Transformer model(clamped_args(GENERATE(false, true)));
  give_weights(model, at::kDouble, 0.5);
  const Tensor tokens = at::randint(0, 13, {2, 6}), labels = at::randint(0, 13, {2, 6});
  loss_and_backward(model, tokens, labels);
  const std::vector<ParameterPtr> parameters = model.parameters();
  std::vector<Tensor> grads;
  for (const ParameterPtr& parameter : parameters)
    grads.push_back(std::exchange(parameter->weight.mutable_grad(), {}));
  for (size_t i = 0; i < parameters.size(); ++i) {
    CAPTURE(parameters[i]->fqn);
    const Tensor direction = at::randn(parameters[i]->shape, at::kDouble);
    const double numeric = numeric_derivative(model, parameters[i], direction, 1e-6, tokens, labels);
    CHECK(numeric == Approx((grads[i] * direction).sum().item<double>()).epsilon(2e-5).margin(1e-6));
    for (const ParameterPtr& parameter : parameters) parameter->weight.mutable_grad().reset();
  }
}

TEST_CASE("clamped experts are a formula of each token, multiplied one by one or all at once") {
  const bool before = GENERATE(true, false);
  const ModelArgs args = clamped_args(before);
  const int64_t tokens = 37;
  const Experts layer = random_experts(args, at::kFloat);
  const std::vector<ParameterPtr> stacks = layer.parameters();
  const Tensor given = at::randn({tokens, 16}), seed = at::randn({tokens, 16}),
               weight = at::rand({tokens, kTopK}),
               even = at::rand({tokens, kExperts}).argsort(1, true).narrow(1, 0, kTopK).to(at::kInt),
               one = at::arange(kTopK, at::kInt).expand({tokens, kTopK}).contiguous();
  for (const Tensor& choices : {even, one}) {
    // The formula, by autograd in fp64.
    std::vector<Tensor> wide;
    for (const ParameterPtr& stack : stacks)
      wide.push_back(stack->weight.detach().to(at::kDouble).requires_grad_());
    const Tensor x = given.to(at::kDouble).requires_grad_(), w = weight.to(at::kDouble).requires_grad_();
    std::vector<Tensor> rows;
    for (int64_t token = 0; token < tokens; ++token) {
      Tensor sum;
      for (int64_t k = 0; k < kTopK; ++k) {
        const auto e = choices[token][k].item<int64_t>();
        const Tensor in = before ? x[token] * w[token][k] : x[token];
        const Tensor h = wide[0][e].mv(in) + wide[2][e];
        const Tensor gate = h.slice(0, 0, std::nullopt, 2).clamp_max(7),
                     up = h.slice(0, 1, std::nullopt, 2).clamp(-7, 7);
        const Tensor y = wide[1][e].mv(gate * (gate * 1.702).sigmoid() * (up + 1)) + wide[3][e];
        const Tensor term = before ? y : y * w[token][k];
        sum = k == 0 ? term : sum + term;
      }
      rows.push_back(sum.unsqueeze(0));
    }
    const Tensor expected = at::cat(rows);
    expected.backward(seed.to(at::kDouble));
    std::vector<Tensor> wanted = {expected.detach(), x.grad(), w.grad()};
    for (const Tensor& stack : wide)
      wanted.push_back(stack.grad().defined() ? stack.grad() : at::zeros_like(stack));
    for (const bool padded : {false, true}) {
      const Tensor leaf = given.clone().requires_grad_(), weights = weight.clone().requires_grad_();
      const auto dispatch = std::make_shared<const Dispatch>(
          dispatch_tokens(choices, kExperts, padded ? RowCounts::kPadded : RowCounts::kOnHost));
      const Tensor y = layer.forward(leaf, weights, Tensor(), {dispatch}, {});
      y.backward(seed);
      std::vector<Tensor> found = {y.detach(), leaf.grad(), weights.grad()};
      for (Tensor& gradient : gradients_of(layer)) found.push_back(std::move(gradient));
      REQUIRE(found.size() == wanted.size());
      for (size_t i = 0; i < found.size(); ++i) {
        CAPTURE(before, padded, i);
        const double largest = wanted[i].abs().max().item<double>();
        CHECK(at::allclose(found[i].to(at::kDouble), wanted[i], 1e-5, 1e-5 * largest));
      }
    }
  }
}

TEST_CASE("clamped experts in chunks of rows have the bits of one run but where a cut divides an expert") {
  const bool padded = GENERATE(false, true);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  const int64_t rows = 400, unit = kernels::kGroupUnit;
  const ModelArgs args = clamped_args();
  const Experts layer = random_experts(args, dtype);
  const Tensor x = at::randn({rows, 16}).to(dtype), seed = at::randn({rows, 16}).to(dtype);
  // Expert 1 has most rows, expert 4 none.
  const Tensor choices =
      at::cat({at::tensor({0, 5, 3, 2}).repeat({30}), at::full({rows - 120}, 1, at::kLong)})
          .index_select(0, at::randperm(rows))
          .unsqueeze(1);
  const Tensor expert = choices.squeeze(1),
               rows_of_undivided = (expert != 1).logical_and_(expert != 5).nonzero().squeeze(1);
  const auto dispatch = std::make_shared<const Dispatch>(
      dispatch_tokens(choices.to(at::kInt), kExperts, padded ? RowCounts::kPadded : RowCounts::kOnHost));
  const auto run = [&](const auto& forward) {
    const Tensor leaf = x.detach().clone().requires_grad_();
    const Tensor y = forward(leaf);
    y.backward(seed);
    std::vector<Tensor> all = {y.detach(), leaf.grad()};
    for (Tensor& gradient : gradients_of(layer)) all.push_back(std::move(gradient));
    return all;
  };
  const std::vector<Tensor> whole =
      run([&](const Tensor& leaf) { return layer.forward(leaf, Tensor(), Tensor(), {dispatch}, {}); });
  const std::vector<ParameterPtr> of = layer.parameters();
  const ExpertStacks stacks{.w1 = of[0], .w2 = of[1], .b1 = of[2], .b2 = of[3]};
  const std::vector<Tensor> cut = run([&](const Tensor& leaf) {
    return experts_in_chunks(leaf, stacks, {}, args.activation, dispatch, test::group_ends(*dispatch),
                             12 * unit, true);
  });
  for (size_t i = 0; i < cut.size(); ++i) {
    CAPTURE(i, padded, dtype);
    const Tensor own = i < 2 ? rows_of_undivided : at::tensor({0, 2, 3, 4}, at::kLong);
    CHECK(cut[i].index_select(0, own).equal(whole[i].index_select(0, own)));
    const double apart = (cut[i].to(at::kDouble) - whole[i].to(at::kDouble)).norm().item<double>(),
                 all = whole[i].to(at::kDouble).norm().item<double>();
    CHECK(apart <= (dtype == at::kFloat ? 1e-6 : 1.0 / 256) * all);
  }
}

TEST_CASE("a block of clamped experts that is run again has bitwise the same gradients") {
  const bool saves = GENERATE(true, false);
  const Transformer model(clamped_args());
  give_weights(model, at::kFloat, 0.3);
  const TransformerBlock& block = model.blocks()[0];
  const SequenceContext context = model.context(6, at::kCPU);
  const Tensor x = at::randn({2, 6, 16}), seed = at::randn({2, 6, 16});
  const auto once = [&](const BlockRun& run) {
    const Tensor input = x.clone().requires_grad_();
    block.forward(input, context, run).backward(seed);
    std::vector<Tensor> found = {input.grad()};
    for (const ParameterPtr& parameter : block.parameters())
      found.push_back(std::exchange(parameter->weight.mutable_grad(), {}));
    return found;
  };
  const std::vector<Tensor> plain = once({});
  const SelectiveCheckpoint::Shapes none;
  SelectiveCheckpoint checkpoint(none, SelectiveCheckpoint::Products::kEverySecond);
  KeptRouting routing;
  BlockRun run{.selective = saves ? &checkpoint : nullptr, .routing = &routing};
  {
    at::NoGradGuard no_grad;
    block.forward(x, context, run);
  }
  checkpoint.start_recompute();
  run.kind = BlockRun::Kind::kRecompute;
  const std::vector<Tensor> recomputed = once(run);
  for (size_t i = 0; i < plain.size(); ++i) CHECK(plain[i].equal(recomputed[i]));
}

TEST_CASE("the bias of a product's output is that of one rank where experts are sharded by columns") {
  // Two ranks' parts of the hidden width and of mlp2's bias add up to the whole.
  const ModelArgs args = clamped_args();
  const Experts whole = random_experts(args, at::kFloat);
  const Tensor x = at::randn({5, 16}), weights = at::rand({5, kTopK}), seed = at::randn({5, 16}),
               choices = at::rand({5, kExperts}).argsort(1, true).narrow(1, 0, kTopK).to(at::kInt);
  const auto dispatch = std::make_shared<const Dispatch>(dispatch_tokens(choices, kExperts));
  const auto run = [&](const Experts& layer) {
    const Tensor leaf = x.clone().requires_grad_(), w = weights.clone().requires_grad_();
    const Tensor y = layer.forward(leaf, w, Tensor(), {dispatch}, {});
    y.backward(seed);
    std::vector<Tensor> all = {y.detach(), leaf.grad(), w.grad()};
    for (Tensor& gradient : gradients_of(layer)) all.push_back(std::move(gradient));
    return all;
  };
  const std::vector<Tensor> expected = run(whole);
  std::vector<std::vector<Tensor>> parts;
  for (int64_t rank = 0; rank < 2; ++rank) {
    const PartParameters parameters(describe_experts(args), args, 0, {});
    const Experts part(parameters, args, {});
    for (size_t i = 0; i < part.parameters().size(); ++i) {
      Parameter& stack = *part.parameters()[i];
      stack.shard(2, rank);
      stack.weight = whole.parameters()[i]->weight.detach().chunk(2, *stack.split)[rank].clone();
      stack.weight.requires_grad_();
    }
    parts.push_back(run(part));
  }
  const int64_t split[] = {1, 2, 1, 1};
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    const Tensor both = i < 3 ? parts[0][i] + parts[1][i] : at::cat({parts[0][i], parts[1][i]}, split[i - 3]);
    CHECK(at::allclose(both, expected[i], 1e-5, 1e-5 * expected[i].abs().max().item<double>()));
  }
}

}  // namespace hyperion::models
