// The CUDA kernels of experts and latent attention without a GPU, as fused_kernels_test.cpp runs the others:
// their source on CPU threads against the plain forms. tests/gpu runs the compiled ones.
#include <cmath>

#include <catch2/catch.hpp>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "models/kernels/kernels.h"

// The kernels come after what stands in for CUDA.
// clang-format off
#include "tests/unit/models/cuda_on_cpu.h"
#include "models/kernels/clamped_gate/cuda.cuh"
#include "models/kernels/expert_rows/cuda.cuh"
#include "models/kernels/group_bias/cuda.cuh"
#include "models/kernels/latent_heads/cuda.cuh"
#include "models/kernels/packed_sums/cuda.cuh"
#include "models/kernels/router/cuda.cuh"
#include "models/kernels/clamped_gate/cuda.h"
#include "models/kernels/expert_rows/cuda.h"
#include "models/kernels/group_bias/cuda.h"
#include "models/kernels/latent_heads/cuda.h"
#include "models/kernels/packed_sums/cuda.h"
#include "models/kernels/router/cuda.h"
// clang-format on

namespace hyperion::models {

using at::Tensor;
namespace own = kernels::cuda;
namespace plain = kernels::plain;

namespace {

bool near_plain(const Tensor& a, const Tensor& b, double roundings = 1) {
  // Of numbers whose terms cancel the error is a part of the terms, which are about as large as the largest
  // number: their sums are in fp32 whatever a and b are rounded to.
  const double terms = b.abs().max().item<double>();
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         at::allclose(a.to(at::kDouble), b.to(at::kDouble),
                      a.scalar_type() == at::kBFloat16 ? roundings / 256 : 1e-5, 1e-5 * terms);
}

// Of random choices, distinct in each token.
Tensor random_choices(int64_t tokens, int64_t experts, int64_t top_k) {
  return std::get<1>(at::rand({tokens, experts}).sort(1)).narrow(1, 0, top_k).to(at::kInt);
}

Tensor random_of(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::randn(shape).to(dtype);
}

}  // namespace

TEST_CASE("the source of the CUDA heads of latent attention follows the plain form, bit for bit but a sum") {
  at::manual_seed(1);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  struct Case {
    int64_t batch, seq, heads, plain, rotated, values;
    double factor;
    bool by_document;
  };
  for (const Case& c : {Case{2, 3, 4, 16, 8, 16, 1, false}, Case{1, 2, 3, 6, 2, 4, 1.25, true},
                        Case{2, 2, 70, 8, 16, 24, 0.5, false}, Case{1, 1, 1, 128, 64, 128, 1, true}}) {
    CAPTURE(dtype, c.heads, c.plain, c.rotated, c.values);
    const int64_t width = c.plain + c.rotated;
    const Tensor q = random_of({c.batch, c.seq, c.heads, width}, dtype),
                 kv = random_of({c.batch, c.seq, c.heads, c.plain + c.values}, dtype),
                 shared = random_of({c.batch, c.seq, c.rotated + 6}, dtype).narrow(-1, 6, c.rotated);
    const Tensor angles =
        c.by_document ? at::rand({c.batch, c.seq, c.rotated / 2}) * 6 : at::rand({c.seq, c.rotated / 2}) * 6;
    const Tensor cos = angles.cos(), sin = angles.sin();
    for (const int64_t value_width : {width, c.values}) {
      const kernels::Heads made =
                               own::latent_heads(kOnThreads, q, kv, shared, cos, sin, c.factor, value_width),
                           wanted = plain::latent_heads(q, kv, shared, cos, sin, c.factor, value_width);
      CHECK(wanted.v.size(-1) == value_width);
      CHECK(made.q.equal(wanted.q));
      CHECK(made.k.equal(wanted.k));
      CHECK(made.v.equal(wanted.v));
      const kernels::Heads on_cpu =
          kernels::cpu::latent_heads(q, kv, shared, cos, sin, c.factor, value_width);
      CHECK(near_plain(on_cpu.q, wanted.q));
      CHECK(near_plain(on_cpu.k, wanted.k));
      CHECK(on_cpu.v.equal(wanted.v));
      // Gradients as attention gives them, heads before tokens.
      const auto grad = [&](int64_t of_head) {
        return random_of({c.batch, c.heads, c.seq, of_head}, dtype).transpose(1, 2);
      };
      const kernels::Heads grads = {grad(width), grad(width), grad(value_width)};
      const auto back = own::latent_heads_backward(kOnThreads, grads, cos, sin, c.factor, c.values),
                 expected = plain::latent_heads_backward(grads, cos, sin, c.factor, c.values);
      CHECK(back.q.equal(expected.q));
      CHECK(back.kv.equal(expected.kv));
      CHECK(near_plain(back.shared, expected.shared));
      const auto cpu_back = kernels::cpu::latent_heads_backward(grads, cos, sin, c.factor, c.values);
      CHECK(near_plain(cpu_back.q, expected.q));
      CHECK(cpu_back.kv.equal(expected.kv));
      CHECK(near_plain(cpu_back.shared, expected.shared));
    }
  }
  const Tensor heads = at::ones({1, 2, 2, 8}), angles = at::ones({2, 2});
  CHECK_THROWS(own::latent_heads(kOnThreads, heads, heads, at::ones({1, 2, 2}), angles, angles, 1.0, 8));
  CHECK_THROWS(own::latent_heads(kOnThreads, heads, at::ones({1, 1, 2, 8}), at::ones({1, 2, 4}), angles,
                                 angles, 1.0, 8));
  const auto& table = kernels::table();
  const Tensor odd = at::ones({1, 2, 2, 7}), shared = at::ones({1, 2, 4});
  CHECK(table.latent_heads.why_plain(odd, heads, shared, angles, angles, 1.0, 8) == "heads of odd widths");
  CHECK(table.latent_heads.why_plain(heads, odd, shared, angles, angles, 1.0, 8) == "heads of odd widths");
}

TEST_CASE("the source of the CUDA router chooses as the plain form and follows its weights and gradients") {
  at::manual_seed(2);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  const auto score = GENERATE(ScoreFunction::kSoftmax, ScoreFunction::kSigmoid);
  struct Case {
    int64_t experts, top_k, groups, limited;
    bool normalise;
  };
  for (const Case& c : {Case{1, 1, 0, 0, true}, Case{8, 3, 0, 0, false}, Case{40, 8, 0, 0, true},
                        Case{64, 6, 8, 3, true}, Case{256, 8, 8, 4, true}, Case{100, 100, 0, 0, false}}) {
    CAPTURE(dtype, static_cast<int>(score), c.experts, c.top_k, c.groups);
    kernels::RoutingOptions options;
    options.experts = c.experts;
    options.top_k = c.top_k;
    options.score = score;
    options.normalise = c.normalise;
    options.scale = 2.5;
    options.groups = c.groups;
    options.limited_groups = c.limited;
    const int64_t tokens = 5;
    Tensor logits = random_of({tokens, c.experts}, dtype);
    logits[0].fill_(0.5);  // ties
    const Tensor bias = at::randn({c.experts}) * 0.1;
    bias.narrow(0, 0, c.experts / 2).zero_();
    const auto [scores, choices] = own::route_tokens(kOnThreads, logits, bias, options);
    CHECK(near_plain(scores, plain::expert_scores(logits, options)));
    CHECK(choices.equal(plain::choose_experts(scores, bias, options)));
    CHECK(near_plain(own::routing_weights(kOnThreads, scores, choices, options),
                     plain::routing_weights(scores, choices, options)));
    CHECK(kernels::cpu::route_tokens(logits, bias, options)
              .choices.equal(plain::route_tokens(logits, bias, options).choices));
    CHECK(near_plain(kernels::cpu::routing_weights(scores, choices, options),
                     plain::routing_weights(scores, choices, options)));
    const Tensor grad = at::randn(choices.sizes());
    CHECK(near_plain(kernels::cpu::routing_weights_backward(grad, scores, choices, options, {}, dtype),
                     plain::routing_weights_backward(grad, scores, choices, options, {}, dtype), 2));
    CHECK(near_plain(own::routing_weights_backward(kOnThreads, grad, scores, choices, options, {}, dtype),
                     plain::routing_weights_backward(grad, scores, choices, options, {}, dtype), 2));
    const Tensor of_parts = at::randn({tokens, c.experts}), of_all = at::randn({1, c.experts});
    for (const kernels::RouterLossGradient& losses :
         {kernels::RouterLossGradient{of_parts, logits, 0.1}, kernels::RouterLossGradient{of_all, {}, 0},
          kernels::RouterLossGradient{{}, logits, 0.1}}) {
      CAPTURE(losses.z_loss, losses.of_probabilities.defined());
      const Tensor wanted = plain::routing_weights_backward(grad, scores, choices, options, losses, dtype);
      CHECK(near_plain(kernels::cpu::routing_weights_backward(grad, scores, choices, options, losses, dtype),
                       wanted, 2));
      CHECK(
          near_plain(own::routing_weights_backward(kOnThreads, grad, scores, choices, options, losses, dtype),
                     wanted, 2));
    }
  }
  // NaN first, as in libtorch's order: choices are valid and distinct whatever the scores are.
  kernels::RoutingOptions options;
  options.experts = 40;
  options.top_k = 3;
  options.score = ScoreFunction::kSigmoid;
  Tensor logits = at::randn({1, 40});
  logits[0][37] = NAN;
  logits[0][5] = NAN;
  for (const int64_t groups : {0, 8}) {
    CAPTURE(groups);
    options.groups = groups;
    options.limited_groups = groups / 2;
    const auto routed = own::route_tokens(kOnThreads, logits, at::zeros({40}), options);
    const Tensor wanted = plain::choose_experts(routed.scores, at::zeros({40}), options);
    CHECK((wanted[0][0].item<int64_t>() == 5 && wanted[0][1].item<int64_t>() == 37));
    CHECK(routed.choices.equal(wanted));
    CHECK(kernels::cpu::route_tokens(logits, at::zeros({40}), options).choices.equal(wanted));
  }
  // Scores that are all zero, and so their sum, give weights and gradients of zero.
  kernels::RoutingOptions none;
  none.experts = 4;
  none.top_k = 2;
  none.score = ScoreFunction::kSigmoid;
  none.normalise = true;
  const Tensor zeros = at::zeros({1, 4}), pair = at::zeros({1, 2}), chosen = at::ones({1, 2}, at::kInt);
  chosen[0][0] = 3;
  for (const Tensor& weights :
       {plain::routing_weights(zeros, chosen, none), kernels::cpu::routing_weights(zeros, chosen, none),
        own::routing_weights(kOnThreads, zeros, chosen, none)})
    CHECK(weights.equal(pair));
  for (const Tensor& gradient :
       {plain::routing_weights_backward(pair + 1, zeros, chosen, none, {}, dtype),
        kernels::cpu::routing_weights_backward(pair + 1, zeros, chosen, none, {}, dtype),
        own::routing_weights_backward(kOnThreads, pair + 1, zeros, chosen, none, {}, dtype)})
    CHECK(gradient.equal(zeros.to(dtype)));
  options.experts = kernels::kMaxFusedExperts + 8;
  options.groups = options.limited_groups = 0;
  CHECK_THROWS(
      own::route_tokens(kOnThreads, at::zeros({1, options.experts}), at::zeros({options.experts}), options));
}

TEST_CASE("the source of the CUDA order of experts' rows has the plain form's numbers, padded or not") {
  at::manual_seed(3);
  struct Case {
    int64_t tokens, experts, top_k, unit;
  };
  for (const Case& c : {Case{1, 1, 1, 0}, Case{5, 8, 3, 8}, Case{300, 4, 2, 0}, Case{300, 600, 2, 16},
                        Case{300, 2000, 4, 8}, Case{700, 3, 3, 32},
                        Case{kernels::kMaxBlocksRead * kernels::kAssignmentsPerBlock / 2 + 1000, 5, 2, 8}}) {
    CAPTURE(c.tokens, c.experts, c.top_k, c.unit);
    const Tensor choices = random_choices(c.tokens, c.experts, c.top_k);
    const kernels::RowOrder wanted = plain::order_rows(choices, c.experts, c.unit);
    for (const kernels::RowOrder& made : {own::order_rows(kOnThreads, choices, c.experts, c.unit),
                                          kernels::cpu::order_rows(choices, c.experts, c.unit)}) {
      CHECK(made.assignments.equal(wanted.assignments));
      CHECK(made.tokens.equal(wanted.tokens));
      CHECK(made.rows.equal(wanted.rows));
      CHECK(made.expert_rows.equal(wanted.expert_rows));
      CHECK(made.ends.defined() == (c.unit > 0));
      if (c.unit == 0) continue;
      CHECK(made.ends.equal(wanted.ends));
      CHECK(made.padding.equal(wanted.padding));
    }
  }
  CHECK_THROWS(own::order_rows(kOnThreads, at::zeros({1, 1}, at::kInt), kernels::kMaxRowGroups + 1, 0));
  CHECK_THROWS(own::order_rows(kOnThreads, at::zeros({1, 1}, at::kInt), 1024, int64_t{1} << 21));
}

TEST_CASE("the source of the CUDA gathers and sums of experts' rows follows the plain forms") {
  at::manual_seed(4);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  struct Case {
    int64_t tokens, experts, top_k, unit, width;
  };
  for (const Case& c : {Case{7, 4, 2, 8, 16}, Case{6, 3, 3, 0, 5}, Case{3, 2, 1, 16, 2056}}) {
    CAPTURE(dtype, c.tokens, c.experts, c.top_k, c.unit, c.width);
    const kernels::RowOrder order =
        plain::order_rows(random_choices(c.tokens, c.experts, c.top_k), c.experts, c.unit);
    const int64_t rows =
        c.unit > 0 ? order.ends[-1].item<int64_t>() : order.assignments.numel();  // of groups
    const auto of_groups = [&](const Tensor& all) { return all.narrow(0, 0, rows); };
    const Tensor x = random_of({c.tokens, c.width}, dtype), weights = at::rand({c.tokens, c.top_k});
    const Tensor flat = weights.flatten(), gathered = plain::gather_rows(x, order, {}),
                 weighted = plain::gather_rows(x, order, flat);
    const auto same_rows = [&](const Tensor& made, const Tensor& wanted) {
      return of_groups(made).equal(of_groups(wanted));
    };
    CHECK(same_rows(own::gather_rows(kOnThreads, x, order, {}), gathered));
    CHECK(same_rows(kernels::cpu::gather_rows(x, order, {}), gathered));
    CHECK(same_rows(own::gather_rows(kOnThreads, x, order, flat), weighted));
    CHECK(same_rows(kernels::cpu::gather_rows(x, order, flat), weighted));
    const Tensor a = random_of(gathered.sizes(), dtype);
    for (const Tensor& added : {Tensor(), random_of({c.tokens, c.width}, dtype)})
      for (const Tensor& factors : {Tensor(), weights}) {
        const Tensor wanted = plain::sum_rows(a, order.rows, factors, added, c.top_k);
        CHECK(near_plain(own::sum_rows(kOnThreads, a, order.rows, factors, added, c.top_k), wanted));
        CHECK(near_plain(kernels::cpu::sum_rows(a, order.rows, factors, added, c.top_k), wanted));
      }
    const auto near_products = [&](const Tensor& made) {
      return near_plain(made, plain::products_of_rows(a, gathered, order.rows));
    };
    CHECK(near_products(own::products_of_rows(kOnThreads, a, gathered, order.rows)));
    CHECK(near_products(kernels::cpu::products_of_rows(a, gathered, order.rows)));
    // What lies in rows of the padding of a is not read: it may be undefined in one that is a product.
    Tensor clean = a.clone(), dirty = a.clone();
    if (order.padding.defined()) {
      clean.index_fill_(0, order.padding, 0);
      dirty.index_fill_(0, order.padding, NAN);
    }
    const kernels::WeightedRows wanted = plain::weight_rows(clean, gathered, order, flat);
    for (const kernels::WeightedRows& made : {own::weight_rows(kOnThreads, dirty, gathered, order, flat),
                                              kernels::cpu::weight_rows(dirty, gathered, order, flat)}) {
      CHECK(same_rows(made.a, wanted.a));
      CHECK(same_rows(made.b, wanted.b));
      CHECK(near_products(made.products));
    }
  }
  // Nor are its rows in the result, whatever the weight of assignment 0 is, which is the one they have.
  const kernels::RowOrder order = plain::order_rows(random_choices(4, 3, 2), 3, 8);
  const Tensor rows = random_of({4, 16}, dtype), a = plain::gather_rows(rows, order, {}),
               weights = at::rand({8});
  const auto zeros_in_padding = [&](const Tensor& made) {
    return made.index_select(0, order.padding).eq(0).all().item<bool>();
  };
  for (const double weight : {static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
    CAPTURE(weight);
    weights[0] = weight;
    for (const Tensor& made :
         {plain::gather_rows(rows, order, weights), kernels::cpu::gather_rows(rows, order, weights),
          own::gather_rows(kOnThreads, rows, order, weights)})
      CHECK(zeros_in_padding(made));
    for (const kernels::WeightedRows& made :
         {plain::weight_rows(a, a, order, weights), kernels::cpu::weight_rows(a, a, order, weights),
          own::weight_rows(kOnThreads, a, a, order, weights)})
      CHECK((zeros_in_padding(made.a) && zeros_in_padding(made.b)));
  }
  const Tensor x = at::ones({3, 4});
  CHECK_THROWS(own::products_of_rows(kOnThreads, x, at::ones({3, 5}), at::zeros({3}, at::kLong)));
}

TEST_CASE("the source of the CUDA sums that travel packed follows the plain form, and its error is small") {
  at::manual_seed(5);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  struct Case {
    int64_t tokens, rows, top_k, width;
  };
  for (const Case& c : {Case{5, 9, 3, 128}, Case{3, 4, 2, 7}, Case{2, 2, 1, 200}, Case{3, 8, 8, 4104}}) {
    CAPTURE(dtype, c.tokens, c.top_k, c.width);
    const Tensor rows = random_of({c.rows, c.width}, dtype), added = random_of({c.tokens, c.width}, dtype),
                 weights = at::rand({c.tokens, c.top_k}),
                 row_of = at::randint(0, c.rows, {c.tokens * c.top_k}, at::kInt);
    weights[0][c.top_k - 1] = 0;  // its row is not read
    const Tensor ids = at::arange(c.tokens, at::kInt), present = at::ones({c.tokens, 1});
    const auto exact = [&](const Tensor& from) {
      return from.to(at::kDouble)
          .index_select(0, row_of)
          .view({c.tokens, c.top_k, c.width})
          .mul(weights.unsqueeze(2))
          .sum(1);
    };
    const auto unpacked = [&](const Tensor& packed) {
      return plain::sum_packed_rows(packed, ids, present, {}, c.width, at::kFloat).to(at::kDouble);
    };
    const auto error = [&](const Tensor& found) {
      return ((found - exact(rows)).norm() / exact(rows).norm()).item<double>();
    };
    const Tensor packed = plain::pack_row_sums(rows, row_of, weights);
    REQUIRE(packed.sizes() == at::IntArrayRef({c.tokens, kernels::bytes_of_packed_row(c.width)}));
    for (const Tensor& made : {packed, own::pack_row_sums(kOnThreads, rows, row_of, weights),
                               kernels::cpu::pack_row_sums(rows, row_of, weights)}) {
      CHECK(made.sizes() == packed.sizes());
      CHECK(error(unpacked(made)) < 5e-5);  // of a rounding to bf16: 1.7e-3
    }
    for (const Tensor& more : {Tensor(), added})
      for (const Tensor& factors : {present, at::rand({c.tokens, 1}).add(0.5)}) {
        const Tensor wanted = plain::sum_packed_rows(packed, ids, factors, more, c.width, dtype);
        CHECK(
            near_plain(own::sum_packed_rows(kOnThreads, packed, ids, factors, more, c.width, dtype), wanted));
        CHECK(near_plain(kernels::cpu::sum_packed_rows(packed, ids, factors, more, c.width, dtype), wanted));
      }
    // A number that is not finite makes its block NaN, and no other; zeros and tiny numbers stay finite.
    for (const double number : {static_cast<double>(INFINITY), static_cast<double>(NAN), 1e-38, 0.0}) {
      Tensor some = rows.clone();
      some.narrow(1, 0, std::min<int64_t>(c.width, 64)).zero_();
      some.select(1, c.width > 5 ? 5 : 0).fill_(number);
      for (const Tensor& made : {plain::pack_row_sums(some, row_of, weights),
                                 own::pack_row_sums(kOnThreads, some, row_of, weights),
                                 kernels::cpu::pack_row_sums(some, row_of, weights)}) {
        const Tensor values = unpacked(made), block = values.narrow(1, 0, std::min<int64_t>(c.width, 64));
        CHECK(block.isnan().sum().item<int64_t>() ==
              (std::isfinite(number) ? 0 : block.numel() - (c.top_k == 1 ? block.size(1) : 0)));
        CHECK_FALSE(values.narrow(1, block.size(1), c.width - block.size(1)).isnan().any().item<bool>());
      }
    }
  }
  CHECK_THROWS(own::sum_packed_rows(kOnThreads, at::zeros({1, 16}, at::kByte), at::zeros({1}, at::kInt),
                                    at::ones({1, 1}), {}, 64, at::kFloat));
}

TEST_CASE("the clamped gate of every form has the formula's values and its gradient by finite differences") {
  at::manual_seed(8);
  // By hand: gate and up inside, both clamped, and a gate far below the limit, which is not clamped.
  const Tensor known = at::tensor({1.0, 2.0, 9.0, -8.0, -20.0, 7.5}, at::kDouble).view({1, 6});
  const auto swish = [](double gate) { return gate / (1 + std::exp(-1.702 * gate)); };
  const Tensor wanted = at::tensor({swish(1) * 3, swish(7) * -6, swish(-20) * 8}, at::kDouble).view({1, 3});
  CHECK(at::allclose(plain::clamped_gate(known), wanted, 1e-14, 1e-14));
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const auto& [rows, n] : {std::pair(1, 1), std::pair(3, 7), std::pair(5, 64), std::pair(2, 2880)}) {
      CAPTURE(dtype, rows, n);
      const Tensor h = (at::randn({rows, 2 * n}) * 5).to(dtype), grad = random_of({rows, n}, dtype);
      const Tensor value = plain::clamped_gate(h), back = plain::clamped_gate_backward(grad, h);
      CHECK(near_plain(own::clamped_gate(kOnThreads, h), value));
      CHECK(near_plain(kernels::cpu::clamped_gate(h), value));
      CHECK(near_plain(own::clamped_gate_backward(kOnThreads, grad, h), back));
      CHECK(near_plain(kernels::cpu::clamped_gate_backward(grad, h), back));
      // Another alignment has the same bits.
      const Tensor shifted = at::empty({rows * 2 * n + 2}, h.options()).narrow(0, 2, rows * 2 * n).view_as(h);
      shifted.copy_(h);
      CHECK(own::clamped_gate(kOnThreads, shifted).equal(own::clamped_gate(kOnThreads, h)));
    }
  const Tensor h = at::randn({4, 10}, at::kDouble) * 5, grad = at::randn({4, 5}, at::kDouble);
  const Tensor back = plain::clamped_gate_backward(grad, h);
  for (int64_t i = 0; i < h.numel(); ++i) {
    const auto loss = [&](double step) {
      const Tensor moved = h.clone();
      moved.view(-1)[i].add_(step);
      return (plain::clamped_gate(moved) * grad).sum().item<double>();
    };
    CHECK(std::abs((loss(1e-6) - loss(-1e-6)) / 2e-6 - back.view(-1)[i].item<double>()) < 1e-7);
  }
  CHECK_THROWS(own::clamped_gate(kOnThreads, at::ones({2, 3})));
}

TEST_CASE("biases of groups are added to their rows, and their gradients are sums of them, in every form") {
  at::manual_seed(9);
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const int64_t n : {1, 7, 64, 300}) {
      CAPTURE(dtype, n);
      const Tensor ends = at::tensor({3, 3, 40, 41}, at::kInt);  // the second group has no row
      const Tensor wide = random_of({44, n + 8}, dtype), bias = random_of({4, n}, dtype);
      const Tensor wanted = wide.to(at::kFloat).narrow(1, 8, n).clone();
      const int64_t first[] = {0, 3, 3, 40, 41};
      Tensor sums = at::zeros({4, n}, at::kDouble);
      for (int64_t e = 0; e < 4; ++e) {
        sums[e] = wide.narrow(1, 8, n).slice(0, first[e], first[e + 1]).to(at::kDouble).sum(0);
        wanted.slice(0, first[e], first[e + 1]).add_(bias[e]);
      }
      const auto added = [&](const auto& add) {
        const Tensor rows = wide.clone();
        add(rows.narrow(1, 8, n));
        CHECK(rows.narrow(1, 0, 8).equal(wide.narrow(1, 0, 8)));
        return rows.narrow(1, 8, n).narrow(0, 0, 41).clone();
      };
      const Tensor expected = wanted.narrow(0, 0, 41).to(dtype), columns = wide.narrow(1, 8, n);
      CHECK(added([&](const Tensor& x) { plain::add_group_bias(x, bias, ends); }).equal(expected));
      CHECK(added([&](const Tensor& x) { kernels::cpu::add_group_bias(x, bias, ends); }).equal(expected));
      CHECK(added([&](const Tensor& x) { own::add_group_bias(kOnThreads, x, bias, ends); }).equal(expected));
      wide.narrow(0, 41, 3).fill_(NAN);  // behind the last group
      CHECK(near_plain(plain::sum_groups(columns, ends), sums.to(dtype)));
      CHECK(near_plain(kernels::cpu::sum_groups(columns, ends), sums.to(dtype)));
      CHECK(near_plain(own::sum_groups(kOnThreads, columns, ends), sums.to(dtype)));
      CHECK(own::sum_groups(kOnThreads, columns, ends)[1].eq(0).all().item<bool>());
    }
  const Tensor rows = at::ones({4, 8}), ends = at::tensor({2, 4}, at::kInt);
  CHECK_THROWS(own::add_group_bias(kOnThreads, rows, at::ones({2, 7}), ends));
  CHECK_THROWS(own::add_group_bias(kOnThreads, rows, at::ones({2, 8}), ends.to(at::kLong)));
  CHECK_THROWS(own::sum_groups(kOnThreads, rows, ends.to(at::kLong)));
}

}  // namespace hyperion::models
