// FP8 and MXFP8 experts against torchao, bit for bit (tests/goldens/float8/grouped.safetensors, made by
// tests/interop/grouped_goldens.py).
#include <cmath>
#include <map>

#include <catch2/catch.hpp>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>

#include "models/flavors/registry.h"
#include "models/float8/blocks.h"
#include "models/float8/grouped_matmuls.h"
#include "models/layers/activation_checkpoint.h"
#include "models/layers/deferred_weights.h"
#include "models/parts/experts/description.h"
#include "models/parts/experts/experts.h"
#include "models/parts/experts/products/expert_chunks.h"
#include "models/transformer.h"
#include "tests/support/float8_goldens.h"
#include "tests/support/group_ends.h"
#include "tests/support/unwritten_is_nan.h"

namespace hyperion::models {
namespace {

using at::Tensor;
using float8::Gemm;
using float8::GroupedMatmuls;
using float8::GroupedRecipe;
using test::read_goldens;
using test::same;

const std::map<std::string, GroupedRecipe> kGroupedRecipes = {{"rowwise", GroupedRecipe::kRowwise},
                                                              {"mx", GroupedRecipe::kMx}};

// 10 log10 of signal to noise; infinite for equal numbers.
double decibel(const Tensor& reference, const Tensor& other) {
  const Tensor r = reference.to(at::kDouble), o = other.to(at::kDouble);
  return 10 * std::log10(r.square().sum().item<double>() / (r - o).square().sum().item<double>());
}

int64_t used(const Tensor& ends, int64_t unit, int64_t divisor = 1) {  // groups that begin with a tile each
  int64_t first = 0, sum = 0;
  for (int64_t g = 0; g < ends.size(0); ++g) {
    const int64_t end = ends[g].item<int64_t>() / divisor;
    sum += (end - first + unit - 1) / unit * unit;
    first = end;
  }
  return sum;
}

struct ExpertLayer {
  static constexpr int64_t kExperts = 6, kTopK = 2, kDim = 32, kTokens = 75;

  explicit ExpertLayer(at::ScalarType dtype, bool before = false)
      : ExpertLayer(dtype, model_args("qwen3", "debugmodel_moe",
                                      {.dim = kDim,
                                       .num_experts = kExperts,
                                       .moe_hidden_dim = 64,
                                       .top_k = kTopK,
                                       .score_before_experts = before})) {}
  ExpertLayer(at::ScalarType dtype, const ModelArgs& args)
      : layer(PartParameters(describe_experts(args), args, 0, {}), args, {}) {
    at::manual_seed(2);
    for (const ParameterPtr& stack : layer.parameters())
      stack->weight = at::randn(stack->shape).mul(0.3).to(dtype).requires_grad_();
    x = at::randn({kTokens, kDim}).to(dtype);
    seed = at::randn({kTokens, kDim}).to(dtype);
    weights = at::rand({kTokens, kTopK});
    even = at::rand({kTokens, kExperts}).argsort(1, true).narrow(1, 0, kTopK).to(at::kInt);
    few =
        at::arange(kTopK, at::kInt).expand({kTokens, kTopK}).contiguous();  // the other experts have no rows
  }
  void convert(GroupedRecipe recipe) {
    counters = std::make_shared<float8::Counters>();
    layer.set_float8(std::make_shared<const GroupedMatmuls>(recipe, Gemm::kEmulated, counters));
  }
  // The result, and the gradients of x, weights and the stacks. later: of the stacks in a second step.
  std::vector<Tensor> run(const Tensor& choices, std::optional<int64_t> unit, bool later = false) {
    const Tensor leaf = x.clone().requires_grad_(), scores = weights.clone().requires_grad_();
    const auto dispatch = std::make_shared<const Dispatch>(
        dispatch_tokens(choices, kExperts, unit ? RowCounts::kPadded : RowCounts::kOnHost, unit.value_or(8)));
    DeferredWeights deferred;
    const Tensor y = layer.forward(leaf, scores, Tensor(), {dispatch}, {.deferred = &deferred});
    deferred.set_deferring(later);
    y.backward(seed);
    CHECK(deferred.empty() != later);
    if (later) CHECK(counters->products == 3 + 3);
    deferred.make_all();
    std::vector<Tensor> all = {y.detach(), leaf.grad(), scores.grad()};
    for (const ParameterPtr& stack : layer.parameters()) {
      all.push_back(stack->weight.grad().clone());
      stack->weight.mutable_grad().reset();
    }
    return all;
  }

  Experts layer;
  Tensor x, seed, weights, even, few;
  std::shared_ptr<float8::Counters> counters{};
};

}  // namespace

TEST_CASE("FP8 and MXFP8 experts have the bits of torchao") {
  const auto goldens = read_goldens("grouped");
  for (const auto& [name, recipe] : kGroupedRecipes)
    for (const std::string content : {"integers", "spread"}) {
      CAPTURE(name, content);
      const auto& given = goldens.at(content);
      const auto& expected = goldens.at(name + "-" + content);
      const auto counters = std::make_shared<float8::Counters>();
      const GroupedMatmuls matmuls(recipe, Gemm::kEmulated, counters);
      const ParameterPtr stack = make_parameter("w", given.at("w").sizes().vec(), Init::ones(), 1);
      stack->weight = given.at("w").clone();
      const Tensor ends = given.at("ends");
      Operand x(given.at("x")), dy(given.at("dy"));
      CHECK(same(matmuls.output(x, *stack, ends, nullptr), expected.at("out")));
      CHECK(same(matmuls.input_gradient(dy, *stack, ends, nullptr), expected.at("dx")));
      CHECK(same(matmuls.weight_gradient(dy, x, ends), expected.at("dw")));
      matmuls.output(x, *stack, ends, nullptr);
      CHECK(counters->products == 4);
      CHECK(counters->operand_casts == 4);  // x and dy, by rows and by columns
      CHECK(counters->weight_casts == 2);
    }
}

TEST_CASE("FP8 products for the gradients of experts' weights wait where a backward is divided") {
  for (const auto& [name, recipe] : kGroupedRecipes) {
    CAPTURE(name);
    ExpertLayer experts(at::kBFloat16);
    experts.convert(recipe);
    const std::vector<Tensor> later = experts.run(experts.even, float8::unit_of(recipe), /*later=*/true);
    CHECK(experts.counters->products == 9);
    const std::vector<Tensor> at_once = experts.run(experts.even, float8::unit_of(recipe));
    for (size_t i = 0; i < later.size(); ++i) CHECK(later[i].equal(at_once[i]));
  }
}

TEST_CASE("scales of MXFP8 groups lie as libtorch's grouped product reads them") {
  const auto goldens = read_goldens("grouped");
  const auto bytes = [](const Tensor& scale) { return scale.view(at::kByte); };
  for (const char* name : {"layout-0", "layout-1"}) {
    CAPTURE(name);
    const auto& golden = goldens.at(name);
    const Tensor ends = golden.at("ends");
    const Tensor rows = bytes(float8::scales_of_row_groups(golden.at("row-scale").view(float8::kE8m0), ends));
    const int64_t used_rows = used(ends, 128);
    CHECK(rows.narrow(0, 0, used_rows).equal(golden.at("rows").narrow(0, 0, used_rows)));
    const Tensor by_columns = golden.at("column-scale");
    const Tensor blocks = bytes(float8::scales_of_block_groups(by_columns.view(float8::kE8m0), ends));
    REQUIRE(blocks.size(0) == 256);  // of 150, as the golden
    const int64_t used_bytes = 256 * used(ends, 4, 32);
    CHECK(blocks.flatten()
              .narrow(0, 0, used_bytes)
              .equal(golden.at("blocks").flatten().narrow(0, 0, used_bytes)));
    CHECK(bytes(float8::scales_of_stack(golden.at("stack-scale").view(float8::kE8m0)))
              .equal(golden.at("stack")));
  }
}

TEST_CASE("FP8 experts differ from those in high precision by what FP8 rounds") {
  const UnwrittenIsNaN guard;
  const bool before = GENERATE(false, true);
  for (const auto& [name, recipe] : kGroupedRecipes)
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      CAPTURE(name, dtype, before);
      ExpertLayer experts(dtype, before);
      for (const Tensor& choices : {experts.even, experts.few}) {
        experts.layer.set_float8(nullptr);
        const std::vector<Tensor> plain = experts.run(choices, std::nullopt);
        experts.convert(recipe);
        CHECK(experts.layer.unit_of_rows(experts.x) == float8::unit_of(recipe));
        const std::vector<Tensor> found = experts.run(choices, float8::unit_of(recipe));
        CHECK(experts.counters->products == 9);  // of w1, w2 and w3: forward and both gradients
        CHECK(experts.counters->weight_casts == 6);
        for (size_t i = 0; i < plain.size(); ++i) {
          CAPTURE(i);
          CHECK(decibel(plain[i], found[i]) > 20);
          CHECK(decibel(plain[i], found[i]) < 40);
        }
        if (choices.is_same(experts.few))
          for (size_t i = 3; i < found.size(); ++i)
            CHECK(found[i].narrow(0, 2, ExpertLayer::kExperts - 2).count_nonzero().item<int64_t>() == 0);
        for (const ParameterPtr& stack : experts.layer.parameters()) stack->derived.reset();
      }
    }
}

TEST_CASE("FP8 experts cast w1 and w3 as one stack, which changes no bit but the gradient of the input") {
  for (const auto& [name, recipe] : kGroupedRecipes) {
    CAPTURE(name);
    ExpertLayer experts(at::kBFloat16);
    experts.layer.set_float8(nullptr);
    const std::vector<Tensor> plain = experts.run(experts.even, std::nullopt);
    experts.convert(recipe);
    const std::vector<Tensor> apart = experts.run(experts.even, float8::unit_of(recipe));
    const ParameterPtr w1 = experts.layer.parameters()[0], w3 = experts.layer.parameters()[2],
                       pack = w1->pack;
    const Tensor both = at::cat({w1->weight, w3->weight}, 1).detach();
    pack->weight = both;
    w1->weight = both.narrow(1, 0, w1->local[1]).detach().requires_grad_();
    w3->weight = both.narrow(1, w1->local[1], w3->local[1]).detach().requires_grad_();
    experts.convert(recipe);
    const std::vector<Tensor> one = experts.run(experts.even, float8::unit_of(recipe));
    CHECK(experts.counters->products == 2 + 2 + 3);  // forward, and the gradients of inputs and of weights
    CHECK(experts.counters->weight_casts == 2);      // of the pack: w2's copies are still there
    for (size_t i = 0; i < one.size(); ++i)
      if (i != 1) CHECK(one[i].equal(apart[i]));
    INFO("dB: one product " << decibel(plain[1], one[1]) << ", two " << decibel(plain[1], apart[1]));
    CHECK(decibel(plain[1], one[1]) > decibel(plain[1], apart[1]) - 0.1);
  }
}

TEST_CASE(
    "FP8 experts in chunks of rows have the results and dgrad of one run, and scale a chunk's part of "
    "wgrad") {
  for (const auto& [name, recipe] : kGroupedRecipes) {
    CAPTURE(name);
    ExpertLayer experts(at::kBFloat16);
    const auto products =
        std::make_shared<const GroupedMatmuls>(recipe, Gemm::kEmulated, std::make_shared<float8::Counters>());
    experts.layer.set_float8(products);
    const auto dispatch = std::make_shared<const Dispatch>(
        dispatch_tokens(experts.even.narrow(1, 0, 1).contiguous(), ExpertLayer::kExperts, RowCounts::kPadded,
                        products->unit()));
    const auto run = [&](const auto& forward) {
      const Tensor leaf = experts.x.clone().requires_grad_();
      const Tensor y = forward(leaf);
      y.backward(experts.seed);
      std::vector<Tensor> all = {y.detach(), leaf.grad()};
      for (const ParameterPtr& stack : experts.layer.parameters())
        all.push_back(std::exchange(stack->weight.mutable_grad(), {}));
      return all;
    };
    const std::vector<Tensor> whole = run(
        [&](const Tensor& leaf) { return experts.layer.forward(leaf, Tensor(), Tensor(), {dispatch}, {}); });
    const std::vector<ParameterPtr> stacks = experts.layer.parameters();
    const std::vector<Tensor> cut = run([&](const Tensor& leaf) {
      return experts_in_chunks(leaf, {stacks[0], stacks[1], stacks[2]}, {.float8 = products},
                               Activation::kSilu, dispatch, test::group_ends(*dispatch), products->unit(),
                               true);
    });
    for (size_t i = 0; i < cut.size(); ++i) {
      CAPTURE(i);
      CHECK(decibel(whole[i], cut[i]) >
            (i < 2 ? 45 : 20));  // a CPU's product of fewer rows may round otherwise
    }
  }
}

TEST_CASE("zeros that fill up a segment change no bit of FP8 experts") {
  const UnwrittenIsNaN guard;
  for (const auto& [name, recipe] : kGroupedRecipes) {
    CAPTURE(name);
    ExpertLayer experts(at::kBFloat16);
    experts.convert(recipe);
    const std::vector<Tensor> found = experts.run(experts.even, float8::unit_of(recipe)),
                              wider = experts.run(experts.even, 3 * float8::unit_of(recipe));
    for (size_t i = 0; i < found.size(); ++i) CHECK(same(found[i], wider[i]));
  }
}

}  // namespace hyperion::models
