// FP8 linears against torchao's emulation, bit for bit (tests/goldens/float8, made by
// tests/interop/float8_goldens.py), and libtorch's FP8 product against the emulation.
#include <cmath>
#include <map>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "base/files.h"
#include "models/flavors/registry.h"
#include "models/float8/blocks.h"
#include "models/float8/cast.h"
#include "models/float8/choice.h"
#include "models/float8/linear_matmuls.h"
#include "models/float8/quantize.h"
#include "models/layers/linear_node.h"
#include "models/transformer.h"
#include "tests/support/error_of.h"
#include "tests/support/float8_bits.h"
#include "tests/support/float8_goldens.h"

namespace hyperion::models {

using namespace float8;
using at::Tensor;
using Catch::Contains;
using test::read_goldens;
using test::same;
using Tensors = test::GoldenTensors;
using Json = nlohmann::json;

namespace {

const Json& golden_cases() {
  static const Json index = Json::parse(read_file(test::kFloat8Goldens / "index.json"));
  return index.at("cases");
}

const Tensors& golden(const Json& entry) {
  static std::map<std::string, std::map<std::string, Tensors>> recipes;
  auto& cases = recipes[entry.at("recipe")];
  if (cases.empty()) cases = read_goldens(entry.at("recipe"));
  return cases.at(entry.at("name"));
}

Recipe recipe_of(const Json& entry) {
  const std::string name = entry.at("recipe");
  if (const auto recipe = choice_of<Recipe>(name)) return *recipe;
  throw_bug("a golden of an unknown recipe: {}", name);
}

// 10 log10 of signal to noise; infinite for equal numbers.
double sqnr(const Tensor& reference, const Tensor& other) {
  const Tensor r = reference.to(at::kDouble), o = other.to(at::kDouble);
  return 10 * std::log10(r.square().sum().item<double>() / (r - o).square().sum().item<double>());
}

struct Products {
  Tensor out, grad_x, grad_w;
};

struct Layer {
  ParameterPtr parameter;
  std::shared_ptr<Counters> counters = std::make_shared<Counters>();

  explicit Layer(const Tensor& w) : parameter(make_parameter("w.weight", w.sizes().vec(), Init::ones())) {
    parameter->weight = w.detach().clone().requires_grad_();
  }
  template <typename AnyRecipe>
  Products run(AnyRecipe recipe, Gemm gemm, const Tensor& x, const Tensor& dy) {
    const Linear linear(parameter, std::make_shared<const LinearMatmuls>(recipe, gemm, counters));
    const Tensor leaf = x.detach().clone().requires_grad_();
    const Tensor out = column_linear(leaf, {&linear})[0];
    const auto grads = torch::autograd::grad({out}, {leaf, parameter->weight}, {dy});
    return {out.detach(), grads[0], grads[1]};
  }
};

}  // namespace

TEST_CASE("scales and saturating casts have torchao's bits") {
  const auto goldens = read_goldens("casts");
  const Tensors& scales = goldens.at("scales");
  for (const auto& [name, dtype] : {std::pair("e4m3", kE4m3), std::pair("e5m2", kE5m2)}) {
    CHECK(same(scales_of(scales.at("amax"), dtype, false).scale, scales.at(name)));
    CHECK(same(scales_of(scales.at("amax"), dtype, true).scale,
               scales.at(std::string(name) + "_power_of_two")));
    const Tensors& casts = goldens.at(std::string("quantise-") + name);
    for (int64_t row = 0; row < casts.at("x").size(0); ++row) {
      const Tensor scale = casts.at("scale")[row];
      const Quantized ours = {saturating_cast(casts.at("x")[row], scale, dtype), scale};
      INFO(name << " row " << row);
      const Tensor wanted = casts.at("bits")[row].view(dtype).to(at::kFloat);
      CHECK(same(ours.values.to(at::kFloat), wanted));
      CHECK(ours.values.view(at::kByte)
                .eq(casts.at("bits")[row])
                .logical_or(wanted.isnan())
                .all()
                .item<bool>());
      CHECK(same(dequantize(ours), casts.at("dequantised")[row]));
    }
  }
}

TEST_CASE("every recipe has the bits of torchao's emulation") {
  int cases = 0;
  for (const Json& entry : golden_cases()) {
    const Tensors& tensors = golden(entry);
    const Products ours =
        Layer(tensors.at("w")).run(recipe_of(entry), Gemm::kEmulated, tensors.at("x"), tensors.at("dy"));
    INFO(entry.at("name").get<std::string>());
    CHECK(same(ours.out, tensors.at("out")));
    CHECK(same(ours.grad_x, tensors.at("dx")));
    CHECK(same(ours.grad_w, tensors.at("dw")));
    ++cases;
  }
  CHECK(cases >= 60);
}

TEST_CASE("MXFP8 has the bits of torchao's emulation") {
  const auto goldens = read_goldens("mx");
  for (const auto& [mode, recipe] :
       {std::pair("floor", MxRecipe::kCublas), std::pair("rceil", MxRecipe::kCublasRceil)})
    for (const auto& [dtype_name, dtype] :
         {std::pair("bf16", at::kBFloat16), std::pair("fp32", at::kFloat)}) {
      const std::string name = fmt::format("{}-{}", mode, dtype_name);
      INFO(name);
      const Tensors& casts = goldens.at(name);
      const bool up = recipe == MxRecipe::kCublasRceil;
      const Operands ours =
          cast_blocks(casts.at("x"), Scaling{.granularity = Granularity::kRowBlock, .rounds_up = up},
                      Scaling{.granularity = Granularity::kColumnBlock, .rounds_up = up});
      const Quantized by_column = {ours.columns.values.t(), ours.columns.scale.t()};
      for (const auto& [side, found] : {std::pair("rows", ours.rows), std::pair("columns", by_column)}) {
        const std::string key = side;
        INFO(key);
        CHECK(same_bits(found.values, casts.at(key).view(kE4m3)));
        CHECK(found.scale.view(at::kByte).equal(casts.at(key + "-scale")));
        CHECK(same(dequantize_blocks(found, dtype), casts.at(key + "-numbers")));
      }
      const Tensors& product = goldens.at(fmt::format("{}-product-{}", mode, dtype_name));
      Layer layer(product.at("w"));
      const Products found = layer.run(recipe, Gemm::kEmulated, product.at("x"), product.at("dy"));
      CHECK(same(found.out, product.at("out")));
      CHECK(same(found.grad_x, product.at("dx")));
      CHECK(same(found.grad_w, product.at("dw")));
      CHECK(layer.counters->products == 3);
    }
}

TEST_CASE("MXFP8 fills up a block of rows with zeros") {
  at::manual_seed(4);
  const Tensor x = at::randn({40, 64}), padded = at::constant_pad_nd(x, {0, 0, 0, 24});
  const Scaling column = {.granularity = Granularity::kColumnBlock};
  const Quantized ours = cast_blocks(x, std::nullopt, column).columns;
  const Quantized wanted = cast_blocks(padded, std::nullopt, column).columns;
  CHECK(same_bits(ours.values, wanted.values));
  CHECK(ours.scale.view(at::kByte).equal(wanted.scale.view(at::kByte)));
  CHECK(ours.values.t().is_contiguous());
  const Tensor dy = at::randn({40, 96});
  Layer layer(at::randn({96, 64}));
  CHECK(layer.run(MxRecipe::kCublas, Gemm::kEmulated, x, dy).grad_w.sizes() == at::IntArrayRef({96, 64}));
  CHECK_THAT(
      error_of(
          ExitCode::kBug,
          [&] {
            cast_blocks(at::randn({32, 48}), Scaling{.granularity = Granularity::kRowBlock}, std::nullopt);
          }),
      Contains("32"));
}

TEST_CASE("scales of MXFP8 lie as cuBLAS reads them") {
  const Tensor scale = at::arange(130 * 6, at::kInt).to(at::kByte).view({130, 6});
  const Tensor found = scales_for_cublas(scale.view(kE8m0)).view(at::kByte);
  REQUIRE(found.sizes() == at::IntArrayRef({256 * 8}));
  for (int64_t row = 0; row < 256; ++row)
    for (int64_t block = 0; block < 8; ++block) {
      // A tile of 128 x 4 is 512 bytes; in it, row r is at r % 32 lines of 16 bytes, and r / 32 words of 4
      // there.
      const int64_t tile = row / 128 * 2 + block / 4,
                    at = tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
      const int wanted = row < 130 && block < 6 ? scale[row][block].item<uint8_t>() : 0;
      if (found[at].item<uint8_t>() != wanted) FAIL(row << ", " << block);
    }
}

TEST_CASE("the distance of FP8 to high precision is torchao's") {
  for (const Json& entry : golden_cases()) {
    const Tensors& tensors = golden(entry);
    Layer layer(tensors.at("w"));
    const Products ours = layer.run(recipe_of(entry), Gemm::kEmulated, tensors.at("x"), tensors.at("dy"));
    const Linear plain(layer.parameter);
    const Tensor x = tensors.at("x").clone().requires_grad_();
    const Tensor out = column_linear(x, {&plain})[0];
    const auto grads = torch::autograd::grad({out}, {x, layer.parameter->weight}, {tensors.at("dy")});
    INFO(entry.at("name").get<std::string>());
    const std::pair<const char*, double> found[] = {{"out", sqnr(out.detach(), ours.out)},
                                                    {"dx", sqnr(grads[0], ours.grad_x)},
                                                    {"dw", sqnr(grads[1], ours.grad_w)}};
    for (const auto& [name, value] : found) {
      if (!entry.at("sqnr_db").contains(name)) continue;
      const double theirs = entry.at("sqnr_db").at(name);
      INFO(name << ": " << value << " dB, torchao " << theirs << " dB");
      CHECK(std::abs(value - theirs) < 0.5);  // the plain product rounds in another order
    }
  }
}

TEST_CASE("libtorch's FP8 product is within 45 dB of the emulation") {
  at::manual_seed(3);
  for (const int64_t m : {32, 17, 5}) {  // rows need no alignment
    const Tensor x = at::randn({m, 64}).to(at::kBFloat16), w = at::randn({48, 64}).to(at::kBFloat16);
    const Tensor dy = at::randn({m, 48}).to(at::kBFloat16);
    Layer layer(w);
    const Products emulated = layer.run(Recipe::kTensorwise, Gemm::kEmulated, x, dy);
    layer.parameter->derived.reset();
    const Products native = layer.run(Recipe::kTensorwise, Gemm::kNative, x, dy);
    CHECK(sqnr(emulated.out, native.out) > 45);  // bf16's own rounding is 50 dB
    CHECK(sqnr(emulated.grad_x, native.grad_x) > 45);
    CHECK(sqnr(emulated.grad_w, native.grad_w) > 45);
  }
}

TEST_CASE("FP8 products refuse what Hopper cannot do on every device") {
  const Tensor a = at::randn({32, 32}), b = at::randn({32, 48});
  const Quantized qa = quantize(a, {}), qb = quantize(b, {});
  const auto multiply = [&](const Quantized& left, const Quantized& right) {
    return error_of(ExitCode::kBug, [&] { scaled_matmul(left, right, at::kFloat, false, Gemm::kNative); });
  };
  CHECK_THAT(multiply(qa, qb), Contains("column-major"));  // row-major b
  const Quantized column = {qb.values.t().contiguous().t(), qb.scale};
  CHECK_NOTHROW(scaled_matmul(qa, column, at::kFloat, false, Gemm::kNative));
  CHECK_THAT(multiply({qa.values.t(), qa.scale}, column), Contains("row-major"));
  const Quantized odd = quantize(at::randn({32, 24}), {});
  CHECK_THAT(multiply(odd, {quantize(at::randn({48, 24}), {}).values.t(), qb.scale}), Contains("16"));
  const Quantized e5 = quantize(a, {.dtype = kE5m2});
  CHECK_THAT(multiply(e5, {e5.values.t(), e5.scale}), Contains("e5m2"));
}

TEST_CASE("a weight is cast once as long as its contents stay") {
  const Tensor x = at::randn({16, 32}).to(at::kBFloat16), dy = at::randn({16, 48}).to(at::kBFloat16);
  for (const auto& [recipe, casts] : {std::pair(Recipe::kTensorwise, 1), std::pair(Recipe::kRowwise, 2),
                                      std::pair(Recipe::kRowwiseWithGwHp, 2)}) {
    Layer layer(at::randn({48, 32}).to(at::kBFloat16));
    for (int microbatch = 0; microbatch < 3; ++microbatch) layer.run(recipe, Gemm::kEmulated, x, dy);
    CHECK(layer.counters->weight_casts == casts);
    CHECK(layer.counters->products == 3 * (recipe == Recipe::kRowwiseWithGwHp ? 2 : 3));
    layer.parameter->derived.reset();
    layer.run(recipe, Gemm::kEmulated, x, dy);
    CHECK(layer.counters->weight_casts == 2 * casts);
  }
}

TEST_CASE("layers of one input cast it once and a block that is run again leaves out its last product") {
  ModelArgs args =
      model_args("llama3", "debugmodel", {.dim = 32, .n_layers = 1, .n_heads = 2, .n_kv_heads = 1});
  const auto counters = std::make_shared<Counters>();
  Transformer model(args);
  for (const ParameterPtr& parameter : model.parameters())
    parameter->weight = (at::randn(parameter->shape) * 0.2).to(at::kBFloat16).requires_grad_();
  const auto matmuls = std::make_shared<const LinearMatmuls>(Recipe::kTensorwise, Gemm::kEmulated, counters);
  for (const auto& [name, linear] : model.linears()) linear->set_float8(matmuls);
  const TransformerBlock& block = model.blocks()[0];
  const SequenceContext context = model.context(4, at::kCPU);
  const Tensor x = at::randn({2, 4, 32}).to(at::kBFloat16).requires_grad_();
  block.forward(x, context);
  CHECK(counters->products == 7);
  CHECK(counters->operand_casts == 4);  // the inputs of wq, wk and wv, of wo, of w1 and w3, and of w2
  const Tensor again = block.forward(x, context, {.kind = BlockRun::Kind::kRecompute});
  CHECK(counters->products == 7 + 6);
  CHECK(again.sizes() == x.sizes());
  again.backward(at::ones_like(again));
  CHECK(counters->products == 7 + 6 + 14);
  // Each layer's gradient, and the input of w2, which was not run again: the others were cast for both.
  CHECK(counters->operand_casts == 4 + 3 + 7 + 1);
}

TEST_CASE("a weight that was gathered in FP8 is used as it came") {
  const Tensor master = at::randn({48, 32});
  const Tensor x = at::randn({16, 32}).to(at::kBFloat16), dy = at::randn({16, 48}).to(at::kBFloat16);
  const auto [scales, inverses] = scales_of(amaxes({master}, at::kCPU), kE4m3, false);
  const Tensor scale = scales[0];
  CHECK(inverses[0].equal(scale.reciprocal()));
  Layer layer(at::full({48, 32}, NAN, at::kBFloat16));  // nobody reads it
  layer.parameter->encoded = {at::empty({48, 32}, kE4m3), scale, inverses[0]};
  cast_into(layer.parameter->encoded.values, master, scale);
  const Products gathered = layer.run(Recipe::kTensorwise, Gemm::kEmulated, x, dy);
  CHECK(layer.counters->weight_casts == 0);
  // The same bits as a cast of the fp32 master.
  const Quantized direct = quantize(master, {});
  CHECK(direct.scale.equal(scale));
  CHECK(direct.values.view(at::kByte).equal(layer.parameter->encoded.values.view(at::kByte)));
  const Tensor out =
      scaled_matmul(quantize(x, {}), {direct.values.t(), direct.scale}, at::kBFloat16, true, Gemm::kEmulated);
  CHECK(gathered.out.equal(out));
  CHECK(amaxes({at::empty({0, 32}), master}, at::kCPU)[0].item<float>() == 0);  // an empty shard
}

TEST_CASE("of an input that is given once for each layer the first one gets the gradient of all on a CPU") {
  at::manual_seed(32);
  const Tensor x = at::randn({2, 16, 32}).to(at::kBFloat16);
  Layer first(at::randn({48, 32}).to(at::kBFloat16)), second(at::randn({64, 32}).to(at::kBFloat16));
  const auto float8 =
      std::make_shared<const LinearMatmuls>(Recipe::kTensorwise, Gemm::kEmulated, first.counters);
  const Linear w1(first.parameter, float8), w3(second.parameter, float8);
  const std::vector<Tensor> seeds = {at::randn({2, 16, 48}).to(at::kBFloat16),
                                     at::randn({2, 16, 64}).to(at::kBFloat16)};
  const Tensor one = x.detach().requires_grad_(), other = x.detach().requires_grad_();
  const auto apart =
      torch::autograd::grad(column_linear({one, other}, {&w1, &w3}),
                            {one, other, first.parameter->weight, second.parameter->weight}, seeds,
                            std::nullopt, /*create_graph=*/false, /*allow_unused=*/true);
  const auto together = torch::autograd::grad(
      column_linear(one, {&w1, &w3}), {one, first.parameter->weight, second.parameter->weight}, seeds);
  CHECK(apart[0].equal(together[0]));
  CHECK_FALSE(apart[1].defined());
  CHECK(apart[2].equal(together[1]));
  CHECK(apart[3].equal(together[2]));
}

TEST_CASE("layers are chosen by name and extents and torchao's rules") {
  const std::vector<LinearShape> layers = {{"layers.0.attention.wq", 4096, 4096},
                                           {"layers.0.attention.wk", 1024, 4096},
                                           {"layers.0.feed_forward.w1", 14336, 4096},
                                           {"layers.0.feed_forward.w2", 100, 4096},
                                           {"output", 128256, 4096}};
  const auto reasons = [&](const std::vector<std::string>& filter, Recipe recipe) {
    std::vector<std::string> all;
    for (const float8::Choice& choice : choose_layers(layers, filter, recipe, Gemm::kNative))
      all.push_back(choice.why_not);
    return all;
  };
  const auto plain = reasons({"output", "attention.wk"}, Recipe::kTensorwise);
  CHECK(plain[0].empty());
  CHECK_THAT(plain[1], Contains("\"attention.wk\" is in filter_fqns"));
  CHECK(plain[2].empty());
  CHECK_THAT(plain[3], Contains("100 x 4096") && Contains("16"));
  CHECK_THAT(plain[4], Contains("output"));
  const auto tensorwise = reasons({kAutoFilter}, Recipe::kTensorwise);
  CHECK(tensorwise[0].empty());
  CHECK_THAT(tensorwise[1], Contains("too small"));
  const auto rowwise = reasons({kAutoFilter}, Recipe::kRowwise);
  CHECK(rowwise[0].empty());
  CHECK_THAT(rowwise[1], Contains("too small"));
  CHECK_THAT(error_of(ExitCode::kUsage, [&] { reasons({kAutoFilter}, Recipe::kRowwiseWithGwHp); }),
             Contains("rowwise_with_gw_hp"));
  CHECK(unmatched_filters(layers, {"output", kAutoFilter, "layers.0"}).empty());
  const auto sentences = unmatched_filters(layers, {"feedforward.w1"});
  REQUIRE(sentences.size() == 1);
  CHECK_THAT(sentences[0], Contains("did you mean feed_forward.w1"));
}

}  // namespace hyperion::models
