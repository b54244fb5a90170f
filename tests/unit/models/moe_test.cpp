#include "models/parts/experts/moe.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <catch2/catch.hpp>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/round.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include "models/args/model_args.h"
#include "models/flavors/registry.h"
#include "models/kernels/matmul/grouped.h"
#include "models/kernels/matmul/matmul.h"
#include "models/layers/activation_checkpoint.h"
#include "models/transformer.h"
#include "tests/unit/models/finite_differences.h"

namespace hyperion::models {

using at::Tensor;
namespace plain = kernels::plain;

namespace {

ModelArgs tiny_experts(const ModelOverrides& changes = {}) {
  ModelOverrides all = changes;
  all.dim = 16;
  all.n_layers = 2;
  all.n_heads = 4;
  all.n_kv_heads = 2;
  all.head_dim = 4;
  all.vocab_size = 13;
  all.hidden_dim = 24;
  all.moe_hidden_dim = 12;
  if (!all.num_experts) all.num_experts = 6;
  if (!all.top_k) all.top_k = 2;
  return model_args("qwen3", "debugmodel_moe", all);
}

RoutingOptions routing(int64_t experts, int64_t top_k, ScoreFunction score = ScoreFunction::kSoftmax) {
  RoutingOptions options{tiny_experts({.num_experts = experts, .top_k = top_k}).experts};
  options.score = score;
  return options;
}

// The rule for one token, in words of its own.
std::vector<int64_t> chosen_by_hand(std::vector<double> scores, const std::vector<double>& bias,
                                    const RoutingOptions& options) {
  const auto experts = static_cast<size_t>(options.experts);
  for (size_t e = 0; e < experts; ++e) scores[e] += bias[e];
  const auto best_first = [](const std::vector<double>& values) {
    std::vector<int64_t> order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int64_t a, int64_t b) { return values[a] > values[b]; });
    return order;
  };
  if (options.groups > 0) {
    const size_t size = experts / static_cast<size_t>(options.groups);
    std::vector<double> of_groups;
    for (size_t first = 0; first < experts; first += size) {
      std::vector<double> members(scores.begin() + first, scores.begin() + first + size);
      std::ranges::sort(members, std::greater());
      of_groups.push_back(members[0] + members[1]);
    }
    const std::vector<int64_t> order = best_first(of_groups);
    for (size_t i = options.limited_groups; i < order.size(); ++i)
      for (size_t e = 0; e < size; ++e) scores[order[i] * size + e] = -INFINITY;
  }
  std::vector<int64_t> order = best_first(scores);
  order.resize(static_cast<size_t>(options.top_k));
  return order;
}

std::vector<double> row(const Tensor& matrix, int64_t index) {
  const Tensor values = matrix[index].to(at::kDouble).contiguous();
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
}

std::vector<Tensor> take_gradients(const std::vector<ParameterPtr>& parameters) {
  std::vector<Tensor> gradients;
  for (const ParameterPtr& parameter : parameters) {
    gradients.push_back(parameter->weight.grad().clone());
    parameter->weight.mutable_grad().reset();
  }
  return gradients;
}

}  // namespace

TEST_CASE("experts are chosen as a scalar rule says, ties to the lower one") {
  at::manual_seed(1);
  struct Case {
    int64_t experts, top_k, groups, limited;
  };
  for (const Case& c :
       {Case{4, 1, 0, 0}, {6, 6, 0, 0}, {8, 3, 0, 0}, {8, 3, 4, 2}, {16, 4, 8, 2}, {64, 8, 0, 0}})
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble})
      for (const bool ties : {false, true}) {
        CAPTURE(c.experts, c.top_k, c.groups, dtype, ties);
        RoutingOptions options = routing(c.experts, c.top_k);
        options.groups = c.groups;
        options.limited_groups = c.limited;
        Tensor scores = at::randn({200, c.experts}).sigmoid(), bias = at::randn({c.experts}) * 0.1;
        if (ties) {  // few values, exact in fp32
          scores = at::round(scores * 4) / 4;
          bias = at::round(bias * 4) / 4;
        }
        scores = scores.to(dtype);
        bias = bias.to(at::kFloat);
        const Tensor found = plain::choose_experts(scores, bias, options);
        REQUIRE(found.sizes() == at::IntArrayRef({200, c.top_k}));
        const Tensor logits = at::randn(scores.sizes()).to(dtype);
        const auto routed = route_tokens(ties ? at::round(logits) : logits, bias, options);
        CHECK(routed.choices.equal(plain::choose_experts(routed.scores, bias, options)));
        for (int64_t token = 0; token < 200; ++token) {
          const Tensor expected = found[token].contiguous();
          const std::vector<int64_t> of_token(expected.const_data_ptr<int32_t>(),
                                              expected.const_data_ptr<int32_t>() + c.top_k);
          std::vector<double> wide = row(scores, token);
          if (dtype == at::kFloat && !ties) continue;  // sums in fp32 may tie where fp64's do not
          CHECK(of_token == chosen_by_hand(wide, row(bias.unsqueeze(0), 0), options));
        }
      }
}

TEST_CASE("choices are experts and distinct whatever the scores are") {
  const RoutingOptions options = routing(4, 3, ScoreFunction::kSigmoid);
  const Tensor logits = at::zeros({4, 4}), bias = at::zeros({4});
  logits[0].fill_(NAN);
  logits[1][2] = INFINITY;
  logits[2][0] = NAN;
  logits[3][3] = NAN;
  const auto [scores, choices] = route_tokens(logits, bias, options);
  CHECK(choices.equal(plain::choose_experts(scores, bias, options)));
  for (int64_t token = 0; token < 4; ++token) {
    std::vector<int64_t> chosen(choices[token].const_data_ptr<int32_t>(),
                                choices[token].const_data_ptr<int32_t>() + 3);
    std::ranges::sort(chosen);
    CHECK(std::ranges::adjacent_find(chosen) == chosen.end());
    CHECK((chosen.front() >= 0 && chosen.back() < 4));
  }
}

TEST_CASE("a bias moves choices and not weights") {
  const Tensor logits = at::zeros({1, 3});
  logits[0][0] = 1.0;
  const RoutingOptions options = routing(3, 1, ScoreFunction::kSigmoid);
  const Tensor bias = at::zeros({3});
  CHECK(route_tokens(logits, bias, options).choices.item<int64_t>() == 0);
  bias[2] = 1.0;
  const auto [scores, chosen] = route_tokens(logits, bias, options);
  CHECK(chosen.item<int64_t>() == 2);
  RoutingOptions raw = options;
  raw.normalise = false;
  raw.scale = 3;
  CHECK(routing_weights(logits, scores, chosen, raw).item<double>() == Approx(1.5));
  CHECK(routing_weights(logits, scores, chosen, options).item<double>() == Approx(1));
}

TEST_CASE("weights of experts have the gradients of finite differences") {
  at::manual_seed(3);
  for (const ScoreFunction score : {ScoreFunction::kSoftmax, ScoreFunction::kSigmoid})
    for (const bool normalise : {false, true}) {
      CAPTURE(static_cast<int>(score), normalise);
      RoutingOptions options = routing(5, 3, score);
      options.normalise = normalise;
      options.scale = 2.5;
      const Tensor logits = at::randn({4, 5}, at::kDouble).requires_grad_(),
                   seed = at::randn({4, 3}, at::kDouble);
      const Tensor choices = route_tokens(logits.detach(), at::zeros({5}), options).choices;
      const auto value = [&](const Tensor& at) {
        return (routing_weights(at, expert_scores(at.detach(), options), choices, options) * seed).sum();
      };
      value(logits).backward();
      for (int64_t i = 0; i < logits.numel(); ++i) {
        constexpr double kStep = 1e-6;
        const Tensor shift = at::zeros({20}, at::kDouble);
        shift[i] = kStep;
        const Tensor up = value(logits.detach() + shift.view({4, 5})),
                     down = value(logits.detach() - shift.view({4, 5}));
        CHECK((up - down).item<double>() / (2 * kStep) ==
              Approx(logits.grad().flatten()[i].item<double>()).epsilon(1e-6).margin(1e-8));
      }
    }
}

TEST_CASE("rows are the assignments in a stable order by expert, and back") {
  at::manual_seed(4);
  struct Case {
    int64_t tokens, experts, top_k;
  };
  for (const Case& c : {Case{1, 1, 1}, {7, 3, 2}, {50, 8, 3}, {5, 64, 8}, {40, 5, 5}}) {
    CAPTURE(c.tokens, c.experts, c.top_k);
    std::vector<Tensor> rows;
    for (int64_t token = 0; token < c.tokens; ++token)
      rows.push_back(at::randperm(c.experts).narrow(0, 0, c.top_k).unsqueeze(0));
    const Tensor choices = at::cat(rows);
    const Dispatch dispatch = dispatch_tokens(choices.to(at::kInt), c.experts);
    const Tensor flat = choices.flatten();
    CHECK(dispatch.assignments.equal(flat.argsort(/*stable=*/true, 0, false).to(at::kInt)));
    CHECK(dispatch.tokens.equal(dispatch.assignments.floor_divide(c.top_k)));
    CHECK(dispatch.rows.index_select(0, dispatch.assignments).equal(at::arange(flat.numel(), at::kInt)));
    CHECK(dispatch.expert_rows.equal(flat.bincount({}, c.experts)));
    for (int64_t e = 0; e < c.experts; ++e)
      CHECK(dispatch.counts[e] == dispatch.expert_rows[e].item<int64_t>());

    const Tensor x = at::randn({c.tokens, 6}, at::kDouble),
                 weights = at::randn({c.tokens, c.top_k}, at::kDouble),
                 added = at::randn({c.tokens, 6}, at::kDouble);
    const Tensor back = sum_rows(gather_rows(x, dispatch, Tensor()), dispatch, weights, added);
    CHECK(at::allclose(back, x * weights.sum(1, true) + added, 1e-12, 1e-12));
    CHECK(at::allclose(sum_rows(gather_rows(x, dispatch, weights), dispatch, Tensor()),
                       x * weights.sum(1, true), 1e-12, 1e-12));
  }
}

TEST_CASE("rows of experts that get no token are zeros") {
  const Dispatch dispatch = dispatch_tokens(at::zeros({0, 2}, at::kInt), 3, RowCounts::kPadded);
  const Tensor rows = gather_rows(at::zeros({0, 4}), dispatch, Tensor());
  CHECK(rows.equal(at::zeros({dispatch.assignments.size(0), 4})));
  const auto [a, b, products] = weight_rows(rows + 1, rows + 2, dispatch, at::zeros({0, 2}));
  CHECK((a.equal(rows) && b.equal(rows)));
  CHECK(products.sizes() == at::IntArrayRef({0, 2}));
}

TEST_CASE("more rows than 32 bits can number are refused") {
  const Tensor many = at::zeros({1, 1}, at::kInt).expand({int64_t{1} << 30, 2});  // holds one number
  CHECK_THROWS_WITH(dispatch_tokens(many, 8),
                    Catch::Contains("2147483648 rows") && Catch::Contains("local_batch_size"));
}

TEST_CASE("sums over experts are in fp32, in the order of the assignments, and rounded once") {
  const Dispatch dispatch = dispatch_tokens(at::arange(3, at::kInt).view({1, 3}), 3);
  const Tensor rows = at::zeros({3, 1}, at::kBFloat16), weights = at::ones({1, 3}, at::kFloat);
  rows[0] = 256.0;  // bf16 has 8 bits: 256 + 1 is 256 there
  rows[1] = 1.0;
  rows[2] = 1.0;
  CHECK(sum_rows(rows, dispatch, Tensor()).item<double>() == 258);
  CHECK(sum_rows(rows, dispatch, weights, rows.narrow(0, 1, 1)).item<double>() ==
        260);  // 259, rounded to even
}

TEST_CASE("grouped products are bit for bit those of each expert, and zeros without rows") {
  at::manual_seed(6);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble})
    for (const std::vector<int64_t>& counts :
         {std::vector<int64_t>{3, 0, 5, 40}, {0, 0, 48, 0}, {48, 0, 0, 0}, {1, 1, 1, 45}}) {
      CAPTURE(dtype, counts);
      const Tensor a = at::randn({48, 64}).to(dtype), grad = at::randn({48, 32}).to(dtype),
                   stack = at::randn({4, 32, 64}).to(dtype);
      const Tensor out = kernels::grouped_matmul(a, stack.transpose(1, 2), {counts}),
                   outer = kernels::grouped_outer_matmul(grad, a, {counts});
      int64_t first = 0;
      for (int64_t e = 0; e < 4; ++e) {
        const Tensor rows = a.narrow(0, first, counts[e]), grads = grad.narrow(0, first, counts[e]);
        if (counts[e] == 0) {
          CHECK(outer[e].count_nonzero().item<int64_t>() == 0);
        } else {
          CHECK(out.narrow(0, first, counts[e]).equal(kernels::matmul(rows, stack[e].t())));
          CHECK(outer[e].equal(kernels::matmul(grads.t(), rows)));
        }
        first += counts[e];
      }
    }
}

TEST_CASE("names of a block with experts are torchtitan's") {
  const Transformer model(tiny_experts({.num_shared_experts = 1}));
  std::vector<std::string> names;
  for (const ParameterPtr& parameter : model.blocks()[1].parameters()) names.push_back(parameter->fqn);
  CHECK(names == std::vector<std::string>{
                     "layers.1.attention.wq.weight", "layers.1.attention.wk.weight",
                     "layers.1.attention.wv.weight", "layers.1.attention.wo.weight",
                     "layers.1.attention.q_norm.weight", "layers.1.attention.k_norm.weight",
                     "layers.1.moe.experts.w1", "layers.1.moe.experts.w2", "layers.1.moe.experts.w3",
                     "layers.1.moe.router.gate.weight", "layers.1.moe.shared_experts.w1.weight",
                     "layers.1.moe.shared_experts.w2.weight", "layers.1.moe.shared_experts.w3.weight",
                     "layers.1.attention_norm.weight", "layers.1.ffn_norm.weight"});
  REQUIRE(model.balances().size() == 2);
  CHECK(model.balances()[0]->bias->fqn == "layers.0.moe.expert_bias");
}

TEST_CASE("gradients of a model with experts equal finite differences") {
  struct Case {
    const char* what;
    ModelOverrides changes;
    bool one_expert = false;  // all tokens go to the same
  };
  for (const Case& c :
       {Case{"softmax, normalised", {}},
        Case{"one expert gets all tokens", {.num_experts = 4, .top_k = 1, .route_norm = false}, true},
        Case{"sigmoid, shared experts, groups",
             {.num_experts = 8,
             .num_shared_experts = 2,
             .top_k = 3,
             .score_func = ScoreFunction::kSigmoid,
             .route_scale = 2.5,
             .expert_groups = 4,
             .limited_groups = 2}},
        Case{"scores before the experts, every second block",
             {.moe_every = 2,
             .num_shared_experts = 1,
             .score_func = ScoreFunction::kSigmoid,
             .route_norm = false,
             .score_before_experts = true}}}) {
    CAPTURE(c.what);
    const Transformer model(tiny_experts(c.changes));
    give_weights(model, at::kDouble, 0.3);
    if (c.one_expert)
      for (const ExpertBalancePtr& balance : model.balances()) balance->bias->weight[2] = 10.0;
    const Tensor tokens = at::randint(0, 13, {2, 6}), labels = at::randint(0, 13, {2, 6});
    loss_and_backward(model, tokens, labels);
    const std::vector<ParameterPtr> parameters = model.parameters();
    const std::vector<Tensor> grads = take_gradients(parameters);
    for (size_t i = 0; i < parameters.size(); ++i) {
      CAPTURE(parameters[i]->fqn);
      if (c.one_expert && parameters[i]->fqn.find(".experts.w") != std::string::npos)
        for (const int64_t without : {0, 1, 3}) CHECK(grads[i][without].count_nonzero().item<int64_t>() == 0);
      const Tensor direction = at::randn(parameters[i]->shape, at::kDouble);
      const double numeric = numeric_derivative(model, parameters[i], direction, 1e-6, tokens, labels);
      const double exact = (grads[i] * direction).sum().item<double>();
      CHECK(numeric == Approx(exact).epsilon(2e-5).margin(1e-6));
    }
  }
}

TEST_CASE(
    "gradients of latent attention equal finite differences, and YaRN begins behind the original length") {
  const bool latent_queries = GENERATE(true, false);
  const int64_t length = GENERATE(6, 5);
  const Transformer model(model_args("deepseek_v3", "debugmodel",
                                     {.dim = 16,
                                      .n_layers = 2,
                                      .n_heads = 2,
                                      .vocab_size = 13,
                                      .hidden_dim = 24,
                                      .rope_original_length = 5,
                                      .kv_lora_rank = 6,
                                      .q_lora_rank = latent_queries ? 5 : 0,
                                      .qk_nope_head_dim = 4,
                                      .qk_rope_head_dim = 4,
                                      .v_head_dim = 3,
                                      .moe_hidden_dim = 12}));
  const SequenceContext context = model.context(length, at::kCPU);
  CHECK((context.attention_factor != 1) == (length > 5));
  give_weights(model, at::kDouble, 0.3);
  const Tensor tokens = at::randint(0, 13, {2, length}), labels = at::randint(0, 13, {2, length});
  loss_and_backward(model, tokens, labels);
  const std::vector<ParameterPtr> parameters = model.parameters();
  const std::vector<Tensor> grads = take_gradients(parameters);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i]->fqn.find("attention") == std::string::npos) continue;
    CAPTURE(parameters[i]->fqn);
    const Tensor direction = at::randn(parameters[i]->shape, at::kDouble);
    CHECK(numeric_derivative(model, parameters[i], direction, 1e-6, tokens, labels) ==
          Approx((grads[i] * direction).sum().item<double>()).epsilon(2e-5).margin(1e-6));
  }
}

TEST_CASE(
    "a document among others has the results of the document alone, with latent attention and experts") {
  const bool yarn = GENERATE(false, true);
  const ModelArgs args = model_args("deepseek_v3", "debugmodel",
                                    {.dim = 16,
                                     .n_layers = 2,
                                     .n_heads = 2,
                                     .vocab_size = 13,
                                     .hidden_dim = 24,
                                     .rope_scaling = yarn,
                                     .rope_original_length = 5,
                                     .kv_lora_rank = 6,
                                     .qk_nope_head_dim = 4,
                                     .qk_rope_head_dim = 4,
                                     .v_head_dim = 3,
                                     .rope_yarn = yarn,
                                     .moe_hidden_dim = 12});
  const Transformer model(args);
  give_weights(model, at::kFloat, 0.3);
  const at::NoGradGuard no_grad;
  const Tensor tokens = at::randint(0, 13, {1, 10});
  const auto hidden = [&](const Tensor& ids, const SequenceContext& context) {
    Tensor x = model.embedding().forward(ids);
    for (const TransformerBlock& block : model.blocks()) x = block.forward(x, context);
    return x;
  };
  const Tensor positions =
      at::cat({at::arange(4, at::kInt), at::arange(6, at::kInt)}).view({1, 10}).contiguous();
  const SequenceContext packed =
      inside_documents(model.context(10, at::kCPU), positions, kernels::document_mask(positions, at::kCPU));
  CHECK((packed.attention_factor != 1) == yarn);
  const Tensor all = hidden(tokens, packed);
  for (const auto& [first, length] : {std::pair{0, 4}, {4, 6}}) {
    const Tensor alone =
        hidden(tokens.narrow(1, first, length).contiguous(), model.context(length, at::kCPU));
    CHECK(at::allclose(all.narrow(1, first, length), alone, 1e-4, 1e-5));
  }
}

TEST_CASE("YaRN is decided by the length in training, unless it is always on") {
  ModelArgs args = model_args("deepseek_v3", "671B");
  CHECK_FALSE(with_yarn_decided(args, 4096).rope.yarn);
  CHECK(scales_by_yarn(with_yarn_decided(args, 4097).rope, 16));
  args.rope.scaling = true;
  CHECK(scales_by_yarn(args.rope, 16));
  args.rope.yarn = false;
  CHECK_FALSE(scales_by_yarn(with_yarn_decided(args, 1 << 20).rope, 1 << 20));
}

TEST_CASE("a block of experts that is run again has bitwise the same gradients and counts tokens once") {
  const auto products =
      GENERATE(SelectiveCheckpoint::Products::kAll, SelectiveCheckpoint::Products::kEverySecond);
  const bool saves = GENERATE(true, false);
  const bool before = GENERATE(true, false);
  const Transformer model(
      tiny_experts({.num_shared_experts = 1, .score_before_experts = before, .load_balance_coeff = 1e-3}));
  give_weights(model, at::kFloat, 0.2);
  const TransformerBlock& block = model.blocks()[0];
  const SequenceContext context = model.context(6, at::kCPU);
  const Tensor x = at::randn({2, 6, 16}), seed = at::randn({2, 6, 16});
  const auto once = [&](const BlockRun& run) {
    const Tensor input = x.clone().requires_grad_();
    block.forward(input, context, run).backward(seed);
    std::vector<Tensor> found = take_gradients(block.parameters());
    found.push_back(input.grad());
    return found;
  };
  const std::vector<Tensor> plain = once({.counts_tokens = true});
  const Tensor counts = model.balances()[0]->counts.clone();
  CHECK(counts.sum().item<int64_t>() == 24);
  const SelectiveCheckpoint::Shapes none;
  SelectiveCheckpoint checkpoint(none, products);
  KeptRouting routing;
  BlockRun run{.selective = saves ? &checkpoint : nullptr, .routing = &routing, .counts_tokens = true};
  {
    at::NoGradGuard no_grad;
    block.forward(x, context, run);
  }
  checkpoint.start_recompute();
  run.kind = BlockRun::Kind::kRecompute;
  const std::vector<Tensor> recomputed = once(run);
  for (size_t i = 0; i < plain.size(); ++i) CHECK(plain[i].equal(recomputed[i]));
  CHECK(model.balances()[0]->counts.equal(2 * counts));
}

TEST_CASE("the router's auxiliary losses have the values and gradients of their formulas") {
  at::manual_seed(21);
  const auto score = GENERATE(ScoreFunction::kSoftmax, ScoreFunction::kSigmoid);
  constexpr int64_t kSequences = 2, kLength = 5, kExperts = 6, kTopK = 2, kTokens = kSequences * kLength;
  ModelArgs args = tiny_experts();
  args.experts.score_func = score;
  args.experts.losses = {.z = 0.3, .sequence = 0.5, .global = 0.7};
  const RoutingOptions options(args.experts);
  RouterLosses losses("layers.1", args.experts, {});
  losses.start_step(2 * kTokens, 2);  // two microbatches
  Tensor sent = at::zeros({kExperts}, at::kDouble);
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    CAPTURE(static_cast<int>(score), microbatch);
    const Tensor logits = (at::randn({kTokens, kExperts}, at::kDouble) * 2).requires_grad_();
    const Tensor bias = at::randn({kExperts}, at::kDouble);
    const auto [scores, choices] = route_tokens(logits.detach(), bias, options);
    const Dispatch dispatch = dispatch_tokens(choices, kExperts);
    LayerMetrics metrics;
    kernels::RouterLossGradient gradient =
        *losses.count(logits.detach(), scores, dispatch.expert_rows, kSequences, &metrics);
    gradient.logits = logits.detach();
    const Tensor found = plain::routing_weights_backward(at::zeros({kTokens, kTopK}, at::kDouble), scores,
                                                         choices, options, gradient, at::kDouble);

    const Tensor s = score == ScoreFunction::kSoftmax ? logits.softmax(1) : logits.sigmoid();
    const Tensor p = s / s.sum(1, true);
    const Tensor z = 0.3 * logits.logsumexp(1).square().mean() / 2;  // of two microbatches
    const Tensor best = std::get<1>(s.topk(kTopK, 1));
    Tensor sequence = at::zeros({}, at::kDouble);
    for (int64_t i = 0; i < kSequences; ++i) {
      const Tensor f = at::zeros({kExperts}, at::kDouble);
      for (int64_t token = 0; token < kLength; ++token)
        f.index_add_(0, best[i * kLength + token], at::ones({kTopK}, at::kDouble));
      const Tensor mean = p.narrow(0, i * kLength, kLength).mean(0);
      sequence = sequence + (f * kExperts / (kTopK * kLength) * mean).sum() * 0.5 / kSequences / 2;
    }
    sent.add_(dispatch.expert_rows);
    const Tensor global = 0.7 * kExperts * (sent / (kTokens * (microbatch + 1)) * p.mean(0)).sum() / 2;
    const Tensor expected = torch::autograd::grad({z + sequence + global}, {logits})[0];
    CHECK(at::allclose(found, expected, 1e-9, 1e-12));
    const auto value = [&](const char* tag) { return metrics.by_tag.at(tag).values.at(0).item<double>(); };
    CHECK(value("loss_metrics/router_z_loss") == Approx(z.item<double>()).epsilon(1e-12));
    CHECK(value("loss_metrics/sequence_aux_loss") == Approx(sequence.item<double>()).epsilon(1e-12));
    CHECK(value("loss_metrics/global_aux_loss") == Approx(global.item<double>()).epsilon(1e-12));
    CHECK(value("experts/router_z_loss/layers.1") == value("loss_metrics/router_z_loss"));
  }
}

}  // namespace hyperion::models
