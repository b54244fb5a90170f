// Padded groups of rows, and experts that are multiplied all at once on them: libtorch has that product for
// CPUs too, in fp32 and bf16.
#include "models/kernels/matmul/grouped.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <catch2/catch.hpp>

#include <ATen/Context.h>
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

#include "models/flavors/registry.h"
#include "models/kernels/common/dtype.h"
#include "models/parts/experts/description.h"
#include "models/parts/experts/experts.h"
#include "models/parts/experts/products/expert_chunks.h"
#include "tests/support/group_ends.h"
#include "tests/support/unwritten_is_nan.h"

namespace hyperion::models {
namespace {

using at::Tensor;

std::vector<int64_t> values_of(const Tensor& tensor) {
  const Tensor values = tensor.to(at::kLong).contiguous();
  return {values.const_data_ptr<int64_t>(), values.const_data_ptr<int64_t>() + values.numel()};
}

}  // namespace

TEST_CASE("groups of rows are padded to multiples and the host knows how many rows are enough") {
  at::manual_seed(1);
  const int64_t unit = GENERATE(8, 16, 32);
  for (std::vector<int64_t> counts : {std::vector<int64_t>{5},
                                      {0},
                                      {8, 0, 9, 16},
                                      {0, 0, 0, 41},
                                      {1, 1, 1, 1, 1},
                                      values_of(at::randint(0, 30, {64})),
                                      values_of(at::randint(0, 3, {256}))}) {
    CAPTURE(unit, counts);
    const int64_t rows = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const kernels::PaddedGroups padded = kernels::pad_groups(at::tensor(counts), rows, unit);
    CHECK(padded.rows % unit == 0);
    CHECK(padded.ends.scalar_type() == at::kInt);
    const std::vector<int64_t> ends = values_of(padded.ends), shift = values_of(padded.shift),
                               padding = values_of(padded.padding);
    std::set<int64_t> expected;
    int64_t end = 0, before = 0;
    for (size_t e = 0; e < counts.size(); ++e) {
      CHECK(shift[e] == end - before);
      const int64_t size = std::max<int64_t>(unit, (counts[e] + unit - 1) / unit * unit);
      for (int64_t row = end + counts[e]; row < end + size; ++row) expected.insert(row);
      end += size;
      before += counts[e];
      CHECK(ends[e] == end);
    }
    CHECK(end < padded.rows);
    if (expected.size() < unit * counts.size()) expected.insert(padded.rows - 1);
    CHECK(padding.size() == unit * counts.size());
    CHECK(std::set<int64_t>(padding.begin(), padding.end()) == expected);
  }
}

TEST_CASE("experts that are multiplied all at once are those that are multiplied one by one") {
  const UnwrittenIsNaN guard;
  const bool before = GENERATE(true, false);
  const int64_t experts = 6, k = 2, tokens = 37;
  const ModelArgs args = model_args(
      "qwen3", "debugmodel_moe",
      {.dim = 16, .num_experts = experts, .moe_hidden_dim = 24, .top_k = k, .score_before_experts = before});
  const Experts layer(PartParameters(describe_experts(args), args, 0, {}), args, {});
  at::manual_seed(2);
  for (const ParameterPtr& stack : layer.parameters())
    stack->weight = at::randn(stack->shape).mul(0.3).requires_grad_();
  const Tensor given = at::randn({tokens, 16}), seed = at::randn({tokens, 16}),
               weight = at::rand({tokens, k}),
               even = at::rand({tokens, experts}).argsort(1, true).narrow(1, 0, k).to(at::kInt),
               one = at::arange(k, at::kInt).expand({tokens, k}).contiguous();  // the others have no rows
  for (const Tensor& choices : {even, one}) {
    std::vector<std::vector<Tensor>> found;
    for (const bool padded : {false, true}) {
      const Tensor x = given.clone().requires_grad_(), weights = weight.clone().requires_grad_();
      const auto dispatch = std::make_shared<const Dispatch>(
          dispatch_tokens(choices, experts, padded ? RowCounts::kPadded : RowCounts::kOnHost));
      CHECK(dispatch->counts.empty() == padded);
      const Tensor y = layer.forward(x, weights, Tensor(), {dispatch}, {});
      y.backward(seed);
      std::vector<Tensor> all = {y.detach(), x.grad(), weights.grad(), dispatch->expert_rows};
      for (const ParameterPtr& stack : layer.parameters()) {
        all.push_back(stack->weight.grad().clone());
        stack->weight.mutable_grad().reset();
      }
      found.push_back(std::move(all));
    }
    for (size_t i = 0; i < found[0].size(); ++i) {
      CAPTURE(i);
      CHECK(at::allclose(found[0][i], found[1][i], 1e-5, 1e-6));
    }
    if (choices.is_same(one))
      for (size_t i = 4; i < found[1].size(); ++i)
        CHECK(found[1][i].narrow(0, k, experts - k).count_nonzero().item<int64_t>() == 0);
  }
}

TEST_CASE("w1 and w3 as one stack change no bit but the gradient of the input, which is no less exact") {
  const UnwrittenIsNaN guard;
  const bool padded = GENERATE(false, true), before = GENERATE(true, false);
  const int64_t experts = 6, k = 2, tokens = 150, dim = 64;
  const ModelArgs args = model_args(
      "qwen3", "debugmodel_moe",
      {.dim = dim, .num_experts = experts, .moe_hidden_dim = 96, .top_k = k, .score_before_experts = before});
  const Experts layer(PartParameters(describe_experts(args), args, 0, {}), args, {});
  const ParameterPtr w1 = layer.parameters()[0], w3 = layer.parameters()[2], pack = w1->pack;
  at::manual_seed(2);
  std::vector<Tensor> stacks;
  for (const ParameterPtr& stack : layer.parameters())
    stacks.push_back(at::randn(stack->shape).mul(0.3).to(at::kBFloat16));
  const Tensor given = at::randn({tokens, dim}).to(at::kBFloat16),
               seed = at::randn({tokens, dim}).to(at::kBFloat16), weight = at::rand({tokens, k}),
               choices = at::rand({tokens, experts}).argsort(1, true).narrow(1, 0, k).to(at::kInt);
  const auto run = [&](at::ScalarType dtype, bool side_by_side) {
    for (size_t i = 0; i < stacks.size(); ++i)
      layer.parameters()[i]->weight = stacks[i].to(dtype, false, /*copy=*/true).requires_grad_();
    pack->weight = side_by_side ? at::cat({stacks[0], stacks[2]}, 1).to(dtype) : Tensor();
    if (side_by_side) {
      w1->weight = pack->weight.narrow(1, 0, w1->local[1]).detach().requires_grad_();
      w3->weight = pack->weight.narrow(1, w1->local[1], w3->local[1]).detach().requires_grad_();
    }
    const Tensor x = given.to(dtype, false, /*copy=*/true).requires_grad_(),
                 weights = weight.to(kernels::opmath_dtype(x), false, /*copy=*/true).requires_grad_();
    const auto dispatch = std::make_shared<const Dispatch>(dispatch_tokens(
        choices, experts, padded && dtype != at::kDouble ? RowCounts::kPadded : RowCounts::kOnHost));
    const Tensor y = layer.forward(x, weights, Tensor(), {dispatch}, {});
    y.backward(seed.to(dtype));
    return std::vector<Tensor>{y.detach(),
                               x.grad(),
                               layer.parameters()[0]->weight.grad(),
                               layer.parameters()[1]->weight.grad(),
                               layer.parameters()[2]->weight.grad(),
                               weights.grad()};
  };
  const std::vector<Tensor> apart = run(at::kBFloat16, false), one = run(at::kBFloat16, true);
  const Tensor exact = run(at::kDouble, false)[1];
  for (size_t i = 0; i < one.size(); ++i) {
    CAPTURE(i, padded, before);
    CHECK(one[i].is_contiguous());
    if (i != 1 && !(i == 5 && before)) CHECK(one[i].equal(apart[i]));
  }
  const auto error = [&](const Tensor& found) {
    return (found.to(at::kDouble) - exact).square().sum().item<double>();
  };
  INFO("squared errors: one product " << error(one[1]) << ", two " << error(apart[1]));
  CHECK(error(one[1]) <= error(apart[1]));
}

TEST_CASE("chunks of rows begin at multiples and name the experts that have rows in them") {
  const std::vector<int64_t> ends = {3, 3, 20, 21, 21};
  std::vector<std::vector<int64_t>> found;
  for (const RowChunk& chunk : cut_rows(ends, 8))
    found.push_back({chunk.first_row, chunk.rows, chunk.first_expert, chunk.experts, chunk.divides_last});
  CHECK(found == std::vector<std::vector<int64_t>>{{0, 8, 0, 3, 1}, {8, 8, 2, 1, 1}, {16, 5, 2, 2, 0}});
}

TEST_CASE("experts in chunks of rows have the bits of one run but where a cut divides an expert") {
  const UnwrittenIsNaN guard;
  const bool padded = GENERATE(false, true);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  const int64_t experts = 6, rows = 400, dim = 64, unit = kernels::kGroupUnit;
  const ModelArgs args = model_args("qwen3", "debugmodel_moe",
                                    {.dim = dim, .num_experts = experts, .moe_hidden_dim = 96, .top_k = 1});
  const Experts layer(PartParameters(describe_experts(args), args, 0, {}), args, {});
  at::manual_seed(2);
  for (const ParameterPtr& stack : layer.parameters())
    stack->weight = at::randn(stack->shape).mul(0.3).to(dtype).requires_grad_();
  const Tensor x = at::randn({rows, dim}).to(dtype), seed = at::randn({rows, dim}).to(dtype);
  // Expert 1 has most rows, expert 4 none.
  const Tensor choices =
      at::cat({at::tensor({0, 5, 3, 2}).repeat({30}), at::full({rows - 120}, 1, at::kLong)})
          .index_select(0, at::randperm(rows))
          .unsqueeze(1);
  const Tensor expert = choices.squeeze(1),
               rows_of_undivided = (expert != 1).logical_and_(expert != 5).nonzero().squeeze(1);
  const auto dispatch = std::make_shared<const Dispatch>(
      dispatch_tokens(choices.to(at::kInt), experts, padded ? RowCounts::kPadded : RowCounts::kOnHost));
  const auto run = [&](const auto& forward) {
    const Tensor leaf = x.detach().clone().requires_grad_();
    const Tensor y = forward(leaf);
    y.backward(seed);
    std::vector<Tensor> all = {y.detach(), leaf.grad()};
    for (const ParameterPtr& stack : layer.parameters())
      all.push_back(std::exchange(stack->weight.mutable_grad(), {}));
    return all;
  };
  const std::vector<Tensor> whole =
      run([&](const Tensor& leaf) { return layer.forward(leaf, Tensor(), Tensor(), {dispatch}, {}); });
  const ExpertStacks stacks = {layer.parameters()[0], layer.parameters()[1], layer.parameters()[2]};
  const std::vector<Tensor> cut = run([&](const Tensor& leaf) {
    return experts_in_chunks(leaf, stacks, {}, args.activation, dispatch, test::group_ends(*dispatch),
                             12 * unit, true);
  });
  for (size_t i = 0; i < cut.size(); ++i) {
    CAPTURE(i, padded, dtype);
    // A CPU's product of fewer rows may add up in another order.
    const Tensor own = i < 2 ? rows_of_undivided : at::tensor({0, 2, 3, 4}, at::kLong);
    CHECK(cut[i].index_select(0, own).equal(whole[i].index_select(0, own)));
    // Each term of a divided expert's sum is rounded to 2^-9 of itself, and so is the whole.
    const double apart = (cut[i].to(at::kDouble) - whole[i].to(at::kDouble)).norm().item<double>(),
                 all = whole[i].to(at::kDouble).norm().item<double>();
    CHECK(apart <= (dtype == at::kFloat ? 1e-6 : 1.0 / 256) * all);
  }
}

TEST_CASE("what libtorch's grouped product does not take is named") {
  const kernels::GroupedShape shape{.groups = 8, .k = 64, .j = 32};
  CHECK(kernels::why_not_at_once(at::kBFloat16, 90, shape) == nullptr);
  CHECK(kernels::why_not_at_once(at::kBFloat16, 100, shape) == nullptr);
  for (const auto& [why, said] :
       {std::pair(kernels::why_not_at_once(at::kFloat, 90, shape), "bfloat16"),
        {kernels::why_not_at_once(at::kBFloat16, 80, shape), "compute capability"},
        {kernels::why_not_at_once(at::kBFloat16, 120, shape), "compute capability"},
        {kernels::why_not_at_once(at::kBFloat16, 90, {.groups = 8, .k = 60, .j = 32}), "multiples of 8"},
        {kernels::why_not_at_once(at::kBFloat16, 90, {.groups = 8, .k = 64, .j = 36}), "multiples of 8"},
        {kernels::why_not_at_once(at::kBFloat16, 90, {.groups = 1024, .k = 64, .j = 32}), "1,023"}}) {
    REQUIRE(why != nullptr);
    CHECK(std::string(why).find(said) != std::string::npos);
  }
  CHECK_FALSE(kernels::multiplies_groups_at_once(at::rand({4, 64}), shape));
}

}  // namespace hyperion::models
