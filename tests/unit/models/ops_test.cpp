// Each operation against libtorch's own autograd in fp64, and the selective checkpoint.
#include "models/layers/ops.h"

#include <algorithm>

#include <catch2/catch.hpp>

#include <ATen/Context.h>
#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/polar.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include "models/flavors/registry.h"
#include "models/kernels/attention/attention.h"
#include "models/layers/activation_checkpoint.h"
#include "models/layers/linear_node.h"
#include "models/transformer.h"

namespace hyperion::models {

using at::Tensor;

namespace {

Tensor leaf(at::IntArrayRef shape) {
  return at::randn(shape, at::kDouble).requires_grad_();
}

Tensor apply_linear(const Tensor& x, const Tensor& weight) {
  const ParameterPtr parameter = make_parameter("w", weight.sizes().vec(), Init::ones());
  parameter->weight = weight;
  const Linear linear(parameter);
  return column_linear(x, {&linear})[0];
}

// Outputs and gradients of `ours` and `reference` agree on the same leaves.
void check_equal(const std::function<Tensor()>& ours, const std::function<Tensor()>& reference,
                 const std::vector<Tensor>& leaves) {
  const Tensor a = ours(), b = reference();
  CHECK(at::allclose(a, b, 1e-10, 1e-12));
  const Tensor seed = at::randn_like(a);
  const auto da = torch::autograd::grad({a}, leaves, {seed});
  const auto db = torch::autograd::grad({b}, leaves, {seed});
  for (size_t i = 0; i < leaves.size(); ++i) CHECK(at::allclose(da[i], db[i], 1e-9, 1e-11));
}

}  // namespace

TEST_CASE("linear and rms norm and swiglu equal plain autograd") {
  at::manual_seed(1);
  const Tensor x = leaf({2, 3, 8}), w = leaf({5, 8}), g = leaf({8}), y = leaf({2, 3, 8});
  check_equal([&] { return apply_linear(x, w); }, [&] { return at::linear(x, w); }, {x, w});
  check_equal([&] { return ops::rms_norm(x, g, 1e-5); },
              [&] { return x * at::rsqrt(x.square().mean(-1, true) + 1e-5) * g; }, {x, g});
  check_equal([&] { return ops::gated_activation(x, y, Activation::kSilu); }, [&] { return at::silu(x) * y; },
              {x, y});
}

TEST_CASE("embedding gathers rows and adds up their gradients") {
  const Tensor w = leaf({6, 4});
  const Tensor tokens = at::tensor({0, 5, 5, 1, 0, 5}, at::kLong).view({2, 3});
  check_equal([&] { return ops::embedding(tokens, w); },
              [&] {
                return w.index_select(0, tokens.flatten()).view({2, 3, 4});
              },
              {w});
}

TEST_CASE("rope rotates by the angle and its gradient rotates back") {
  const Tensor x = leaf({2, 3, 2, 8}), other = at::zeros({2, 3, 1, 8}, at::kDouble);
  const Tensor angles = at::rand({3, 4}, at::kDouble);
  for (RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalfSplit}) {
    auto reference = [&] {
      const Tensor turn = at::polar(at::ones_like(angles), angles).unsqueeze(1);
      if (style == RopeStyle::kInterleaved)
        return at::view_as_real(at::view_as_complex(x.view({2, 3, 2, 4, 2})) * turn).flatten(3);
      const auto h = x.chunk(2, -1);
      const Tensor c = angles.cos().unsqueeze(1), s = angles.sin().unsqueeze(1);
      return at::cat({h[0] * c - h[1] * s, h[1] * c + h[0] * s}, -1);
    };
    check_equal([&] { return ops::rope_qkv(x, other, other, angles.cos(), angles.sin(), style).q; },
                reference, {x});
    check_equal([&] { return ops::rope_qkv(other, x, other, angles.cos(), angles.sin(), style).k; },
                reference, {x});
  }
}

namespace {

// The results and the gradients of leaves of `work`, for fixed gradients of the results.
std::vector<Tensor> results_and_gradients(
    const std::function<std::vector<Tensor>(std::vector<Tensor>&)>& work, const std::vector<Tensor>& values) {
  std::vector<Tensor> leaves, seeds;
  for (const Tensor& value : values) leaves.push_back(value.detach().requires_grad_());
  std::vector<Tensor> results = work(leaves);
  at::manual_seed(77);
  for (const Tensor& result : results) seeds.push_back(at::randn(result.sizes()).to(result.scalar_type()));
  const auto gradients = torch::autograd::grad(results, leaves, seeds);
  results.insert(results.end(), gradients.begin(), gradients.end());
  return results;
}

bool all_equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::ranges::equal(a, b, [](const Tensor& x, const Tensor& y) { return x.equal(y); });
}

}  // namespace

TEST_CASE("a residual stream and its norm in one node have the bits of a sum and a norm") {
  at::manual_seed(21);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kDouble);
  const Tensor x = at::randn({6, 33}).to(dtype), residual = at::randn({2, 3, 33}).to(dtype),
               weight = at::randn({33}).to(dtype);
  const auto in_one = results_and_gradients(
      [](std::vector<Tensor>& leaves) {
        const ops::SumAndNorm both = ops::add_rms_norm(leaves[0], leaves[1], leaves[2], 1e-5);
        return std::vector{both.sum * 2, both.normed[0]};
      },
      {x, residual, weight});
  const auto apart = results_and_gradients(
      [](std::vector<Tensor>& leaves) {
        const Tensor sum = leaves[1] + leaves[0].view(leaves[1].sizes());
        return std::vector{sum * 2, ops::rms_norm(sum, leaves[2], 1e-5)};
      },
      {x, residual, weight});
  CHECK(all_equal(in_one, apart));

  const auto stream = results_and_gradients(
      [](std::vector<Tensor>& leaves) {
        const ops::SumAndNorm both = ops::rms_norm_of_residual(leaves[0], leaves[1], 1e-5);
        return std::vector{both.sum * 2, both.normed[0]};
      },
      {residual, weight});
  const auto twice = results_and_gradients(
      [](std::vector<Tensor>& leaves) {
        return std::vector{leaves[0] * 2, ops::rms_norm(leaves[0], leaves[1], 1e-5)};
      },
      {residual, weight});
  CHECK(all_equal(stream, twice));
}

TEST_CASE("a residual stream whose sum or whose norm nobody reads has the gradients of the other") {
  const Tensor x = leaf({4, 8}), residual = leaf({4, 8}), weight = leaf({8});
  const auto of = [&](bool norm) {
    const auto both = ops::add_rms_norm(x, residual, weight, 1e-5);
    return torch::autograd::grad({(norm ? both.normed[0] : both.sum).square().sum()}, {x, residual, weight},
                                 {}, std::nullopt, false, /*allow_unused=*/true);
  };
  const auto sum = of(false), normed = of(true);
  CHECK(sum[0].equal((x + residual) * 2));
  CHECK(sum[1].equal(sum[0]));
  CHECK_FALSE(sum[2].defined());
  const Tensor stream = (x + residual).detach().requires_grad_();
  const auto expected =
      torch::autograd::grad({ops::rms_norm(stream, weight, 1e-5).square().sum()}, {stream, weight});
  CHECK(normed[0].equal(expected[0]));
  CHECK(normed[1].equal(expected[0]));
  CHECK(normed[2].equal(expected[1]));
}

TEST_CASE("the gradients of a norm's consumers are added up in its node from the last to the first") {
  at::manual_seed(23);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kDouble);
  const auto adds = GENERATE(true, false);
  const Tensor x = at::randn({6, 33}).to(dtype), residual = at::randn({2, 3, 33}).to(dtype),
               weight = at::randn({33}).to(dtype);
  const std::vector<Tensor> seeds = {at::randn({2, 3, 33}).to(dtype), at::randn({2, 3, 33}).to(dtype),
                                     at::randn({2, 3, 33}).to(dtype)};
  const auto gradients = [&](int64_t consumers) {
    const Tensor of_x = x.detach().requires_grad_(), of_residual = residual.detach().requires_grad_(),
                 of_weight = weight.detach().requires_grad_();
    const ops::SumAndNorm both = adds ? ops::add_rms_norm(of_x, of_residual, of_weight, 1e-5, consumers)
                                      : ops::rms_norm_of_residual(of_residual, of_weight, 1e-5, consumers);
    for (const Tensor& branch : both.normed)
      CHECK(branch.const_data_ptr() == both.normed[0].const_data_ptr());
    std::vector<Tensor> results = both.normed, given = {(seeds[2] + seeds[1]) + seeds[0]};
    if (consumers > 1) given = seeds;
    results.push_back(both.sum);
    given.push_back(at::ones_like(residual));
    std::vector<Tensor> leaves = {of_residual, of_weight};
    if (adds) leaves.push_back(of_x);
    return torch::autograd::grad(results, leaves, given);
  };
  CHECK(all_equal(gradients(3), gradients(1)));
}

TEST_CASE("queries and keys turned in one node from one product have the bits of tensors turned alone") {
  at::manual_seed(22);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kDouble);
  const auto parts = GENERATE(1, 3);
  const auto style = GENERATE(RopeStyle::kInterleaved, RopeStyle::kHalfSplit);
  std::vector<int64_t> shape = {2, 12, (4 + 2 * 2) * 8};
  if (parts > 1) shape = {parts, 2, 12 / parts, shape.back()};
  const Tensor product = at::randn(shape).to(dtype), angles = at::rand({2, 12, 4});
  const auto heads = [](const Tensor& packed, int64_t first, int64_t count) {
    return packed.narrow(-1, first * 8, count * 8).unflatten(-1, {count, 8});
  };
  const auto in_one = results_and_gradients(
      [&](std::vector<Tensor>& leaves) {
        auto [q, k, v] = ops::rope_qkv(heads(leaves[0], 0, 4), heads(leaves[0], 4, 2), heads(leaves[0], 6, 2),
                                       angles.cos(), angles.sin(), style);
        return std::vector{q, k, v * 2};
      },
      {product});
  const auto apart = results_and_gradients(
      [&](std::vector<Tensor>& leaves) {
        const Tensor q = heads(leaves[0], 0, 4).contiguous(), k = heads(leaves[0], 4, 2).contiguous(),
                     v = heads(leaves[0], 6, 2);
        return std::vector{ops::rope_qkv(q, k, k, angles.cos(), angles.sin(), style).q,
                           ops::rope_qkv(q, k, k, angles.cos(), angles.sin(), style).k,
                           (parts > 1 ? v.transpose(0, 1).flatten(1, 2) : v) * 2};
      },
      {product});
  CHECK(all_equal(in_one, apart));
}

TEST_CASE("swiglu of the halves of one product has the bits of swiglu of two tensors") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kDouble);
  const Tensor product = at::randn({3, 5, 2 * 17}).to(dtype);
  const auto halves = results_and_gradients(
      [](std::vector<Tensor>& leaves) {
        return std::vector{ops::gated_activation(leaves[0].narrow(-1, 0, 17), leaves[0].narrow(-1, 17, 17),
                                                 Activation::kSilu)};
      },
      {product});
  const auto apart = results_and_gradients(
      [](std::vector<Tensor>& leaves) {
        return std::vector{ops::gated_activation(leaves[0], leaves[1], Activation::kSilu)};
      },
      {product.narrow(-1, 0, 17).contiguous(), product.narrow(-1, 17, 17).contiguous()});
  CHECK(halves[0].equal(apart[0]));
  CHECK(halves[1].equal(at::cat({apart[1], apart[2]}, -1)));
}

TEST_CASE("attention with grouped queries equals the plain formula with and without documents") {
  at::manual_seed(2);
  const Tensor q = leaf({2, 4, 5, 8}), k = leaf({2, 2, 5, 8}), v = leaf({2, 2, 5, 8});
  const Tensor causal = at::ones({5, 5}, at::kBool).tril();
  const Tensor positions = at::tensor({0, 1, 2, 0, 1, 0, 1, 2, 3, 4}, at::kInt).view({2, 5});
  Tensor mask = causal.unsqueeze(0).unsqueeze(0).expand({2, 1, 5, 5}).clone();
  mask.index_put_({0, 0, at::indexing::Slice(3), at::indexing::Slice(0, 3)}, false);
  for (const bool packed : {false, true}) {
    const auto documents = packed ? kernels::document_mask(positions, at::kCPU) : kernels::AttentionMask();
    auto reference = [&] {
      const Tensor kk = k.repeat_interleave(2, 1), vv = v.repeat_interleave(2, 1);
      const Tensor scores = at::matmul(q, kk.transpose(2, 3)) / std::sqrt(8.0);
      return at::matmul(
          at::softmax(scores.masked_fill((packed ? mask : causal).logical_not(), -INFINITY), -1), vv);
    };
    check_equal([&] { return ops::attention(q, k, v, documents); }, reference, {q, k, v});
  }
}

TEST_CASE("results have the input's dtype and bf16 differs from fp32") {
  const Tensor x = at::randn({4, 8}).to(at::kBFloat16), w = at::randn({3, 8}).to(at::kBFloat16);
  CHECK(apply_linear(x, w).scalar_type() == at::kBFloat16);
  CHECK(ops::rms_norm(x, at::ones({8}).to(at::kBFloat16), 1e-5).scalar_type() == at::kBFloat16);
  CHECK_FALSE(apply_linear(x, w).to(at::kFloat).equal(apply_linear(x.to(at::kFloat), w.to(at::kFloat))));
}

TEST_CASE("a recomputed block has bitwise the same gradients and keeps three of seven products") {
  at::manual_seed(3);
  ModelArgs args =
      model_args("llama3", "debugmodel", {.dim = 32, .n_layers = 1, .n_heads = 4, .n_kv_heads = 2});
  const Transformer model(args);
  for (const ParameterPtr& parameter : model.parameters()) {
    parameter->weight = at::randn(parameter->shape) * 0.2;
    parameter->weight.requires_grad_();
  }
  const TransformerBlock& block = model.blocks()[0];
  const SequenceContext context = model.context(6, at::kCPU);
  const Tensor x = at::randn({2, 6, 32}), seed = at::randn({2, 6, 32});
  auto gradients = [&] {
    std::vector<Tensor> grads;
    for (const ParameterPtr& parameter : block.parameters()) {
      grads.push_back(parameter->weight.grad().clone());
      parameter->weight.mutable_grad().reset();
    }
    return grads;
  };
  block.forward(x, context).backward(seed);
  const auto plain = gradients();

  const SelectiveCheckpoint::Shapes none;
  SelectiveCheckpoint checkpoint(none);
  Tensor first;
  {
    at::NoGradGuard no_grad;
    first = block.forward(x, context, {.selective = &checkpoint});
  }
  checkpoint.start_recompute();
  const Tensor again =
      block.forward(x, context, {.kind = BlockRun::Kind::kRecompute, .selective = &checkpoint});
  CHECK(again.sizes() == first.sizes());
  again.backward(seed);
  const auto recomputed = gradients();
  for (size_t i = 0; i < plain.size(); ++i) CHECK(plain[i].equal(recomputed[i]));
  CHECK_THROWS(checkpoint.take_saved());  // all that was saved was read: wq, wv, w1 and attention
}

namespace {

// Layers of one input [.., 6] whose weights lie side by side, or the same ones apart.
std::vector<Linear> layers_of_one_input(const std::vector<int64_t>& rows, bool side_by_side,
                                        at::ScalarType dtype) {
  int64_t all = 0;
  for (const int64_t count : rows) all += count;
  at::manual_seed(21);
  const ParameterPtr pack = make_parameter("wq, wk and wv", {all, 6}, Init::ones());
  const Tensor weight = at::randn({all, 6}, at::kDouble).to(dtype);
  if (side_by_side) pack->weight = weight;
  std::vector<Linear> layers;
  int64_t first = 0;
  for (const int64_t count : rows) {
    const ParameterPtr parameter = make_parameter("w" + std::to_string(first), {count, 6}, Init::ones());
    const Tensor own = weight.narrow(0, first, count);
    parameter->weight = (side_by_side ? own : own.clone()).detach().requires_grad_();
    parameter->pack = pack;
    layers.emplace_back(parameter);
    first += count;
  }
  return layers;
}

std::vector<const Linear*> pointers(const std::vector<Linear>& layers) {
  std::vector<const Linear*> all;
  for (const Linear& layer : layers) all.push_back(&layer);
  return all;
}

}  // namespace

TEST_CASE("layers whose weights lie side by side are one product with the results and gradients of each") {
  const auto [dtype, tolerance] =
      GENERATE(std::pair{at::kDouble, 1e-13}, std::pair{at::kFloat, 1e-5}, std::pair{at::kBFloat16, 3e-2});
  const bool views = GENERATE(true, false);  // gradients that arrive as views of one tensor, or one by one
  const std::vector<int64_t> rows = {8, 2, 3};
  CAPTURE(views, dtype);
  at::manual_seed(5);
  const Tensor x = at::randn({2, 5, 6}, at::kDouble).to(dtype);
  const Tensor all = at::randn({2, 5, 13}, at::kDouble).to(dtype);
  const auto found = [&](bool side_by_side) {
    const std::vector<Linear> layers = layers_of_one_input(rows, side_by_side, dtype);
    const Tensor input = x.detach().clone().requires_grad_();
    const std::vector<Tensor> outputs = column_linear(input, pointers(layers));
    REQUIRE(outputs.size() == rows.size());
    if (side_by_side) CHECK(outputs[1].is_alias_of(outputs[0]));
    std::vector<Tensor> numbers = outputs, grads;
    int64_t first = 0;
    for (const int64_t count : rows) {
      const Tensor grad = all.narrow(-1, first, count);
      grads.push_back(views ? grad : grad.contiguous());
      first += count;
    }
    torch::autograd::backward({outputs.begin(), outputs.end()}, {grads.begin(), grads.end()});
    numbers.push_back(input.grad());
    for (const Linear& layer : layers) {
      CHECK(layer.weight()->weight.grad().is_contiguous());
      numbers.push_back(layer.weight()->weight.grad());
    }
    if (side_by_side)  // of one product, taken without a copy
      CHECK(layers[0].weight()->weight.grad().is_alias_of(layers[2].weight()->weight.grad()));
    return numbers;
  };
  const std::vector<Tensor> separate = found(false), packed = found(true);
  for (size_t i = 0; i < separate.size(); ++i) {
    CAPTURE(i);
    CHECK(packed[i].sizes() == separate[i].sizes());
    CHECK(at::allclose(packed[i].to(at::kDouble), separate[i].to(at::kDouble), tolerance, 4 * tolerance));
  }
}

TEST_CASE(
    "of weights side by side a checkpoint saves the whole product where little of it would be recomputed") {
  const SelectiveCheckpoint::Shapes none;
  const auto saved_numbers = [&](const std::vector<int64_t>& rows) {
    SelectiveCheckpoint checkpoint(none);
    const std::vector<Linear> layers = layers_of_one_input(rows, true, at::kFloat);
    const Tensor x = at::randn({3, 6});
    at::NoGradGuard no_grad;
    const std::vector<Tensor> outputs = column_linear(x, pointers(layers), {.selective = &checkpoint});
    checkpoint.start_recompute();
    const std::vector<Tensor> again = column_linear(x, pointers(layers), {.selective = &checkpoint});
    for (size_t i = 0; i < outputs.size(); ++i) CHECK(outputs[i].equal(again[i]));
    CHECK_THROWS(checkpoint.take_saved());  // all that was saved was read
    int64_t numbers = 0;                    // of the storages that the second run shares with the first
    for (size_t i = 0; i < outputs.size(); ++i)
      if (again[i].is_alias_of(outputs[i]) && (i == 0 || !again[i].is_alias_of(again[i - 1])))
        numbers += static_cast<int64_t>(again[i].storage().nbytes()) / (4 * 3);
    return numbers;
  };
  CHECK(saved_numbers({8, 2, 2}) == 12);  // a sixth of queries, keys and values are keys: all are saved
  CHECK(saved_numbers({6, 6, 6}) == 12);  // a third: keys are multiplied and recomputed alone
  CHECK(saved_numbers({7, 7}) == 7);      // gate and up: gate is saved
}

TEST_CASE("a linear layer may end before the backward of its output") {
  std::weak_ptr<Parameter> parameter;
  const Tensor x = at::randn({3, 4}).requires_grad_(), weight = at::randn({2, 4}).requires_grad_();
  Tensor out;
  {
    const ParameterPtr owned = make_parameter("w.weight", {2, 4}, Init::ones());
    owned->weight = weight;
    parameter = owned;
    const Linear linear(owned);
    out = column_linear(x, {&linear})[0];
  }
  CHECK_FALSE(parameter.expired());  // the graph holds it
  out.sum().backward();
  CHECK(at::allclose(x.grad(), at::ones({3, 2}).mm(weight)));
  CHECK(at::allclose(weight.grad(), at::ones({2, 3}).mm(x)));
  out.reset();
  CHECK(parameter.expired());
}

TEST_CASE("the last sum of a block that is run again is left out and gives the gradients of both terms") {
  const Tensor stream = at::randn({2, 3}).requires_grad_(), x = at::randn({2, 3}).requires_grad_(),
               seed = at::randn({2, 3});
  CHECK(ops::residual_sum(stream, x).equal(stream + x));
  const Tensor left_out = ops::residual_sum(stream, x, {.kind = BlockRun::Kind::kRecompute});
  CHECK(left_out.is_alias_of(x));
  left_out.backward(seed);
  CHECK(stream.grad().equal(seed));
  CHECK(x.grad().equal(seed));
}

TEST_CASE("a second backward through linear layers is refused, for they keep nothing for it") {
  const ParameterPtr parameter = make_parameter("w.weight", {2, 4}, Init::ones());
  parameter->weight = at::randn({2, 4}).requires_grad_();
  const Linear linear(parameter);
  const Tensor out = column_linear(at::randn({3, 4}), {&linear})[0];
  out.backward(at::ones_like(out), /*retain_graph=*/true);
  CHECK_THROWS_WITH(out.backward(at::ones_like(out)), Catch::Contains("second backward"));
}

TEST_CASE("an input that is given to linear layers neither once nor once for each is a bug") {
  const std::vector<Linear> layers = layers_of_one_input({8, 2, 3}, /*side_by_side=*/false, at::kFloat);
  const Tensor x = at::randn({5, 6});
  CHECK_THROWS_WITH(column_linear({x, x}, pointers(layers)),
                    Catch::Contains("given 2 times to 3 linear layers"));
}

TEST_CASE("products with weights of a chosen shape are never saved and do not count") {
  const SelectiveCheckpoint::Shapes gate = {{4, 8}};
  SelectiveCheckpoint checkpoint(gate);
  CHECK(checkpoint.saves_next_matmul({8, 8}));
  CHECK_FALSE(checkpoint.saves_next_matmul({4, 8}));
  CHECK_FALSE(checkpoint.saves_next_matmul({8, 8}));
  CHECK(checkpoint.saves_next_matmul({8, 8}));
}

}  // namespace hyperion::models
