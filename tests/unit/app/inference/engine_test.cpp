// Generation and evaluation on a tiny model, against the plain model and the loader.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>

#include "app/inference/evaluate.h"
#include "app/inference/generate.h"
#include "base/error.h"
#include "models/flavors/registry.h"
#include "models/init.h"
#include "tests/support/temporary_folder.h"

namespace hyperion::inference {

using at::Tensor;
namespace fs = std::filesystem;

namespace {

models::ModelArgs tiny() {
  return models::model_args("llama3", "debugmodel",
                            {.dim = 32,
                             .n_layers = 2,
                             .n_heads = 4,
                             .n_kv_heads = 2,
                             .head_dim = 8,
                             .vocab_size = 64,
                             .hidden_dim = 48,
                             .max_seq_len = 24});
}

void load(const Parameter& parameter, const Tensor& weight) {
  Tensor rows = weight;
  models::initialize(parameter, /*seed=*/3, whole_box(parameter.shape), rows);
}

InferenceEngine engine() {
  at::set_num_threads(1);  // in products this small threads only wait for each other
  return {tiny(), at::kCPU, at::kFloat, load};
}

// [seq, vocab], of the plain model.
Tensor logits_of(const std::vector<int64_t>& tokens) {
  const at::NoGradGuard no_grad;
  const models::Transformer model(tiny());
  for (const ParameterPtr& parameter : model.parameters()) {
    parameter->weight = at::empty(parameter->shape, at::TensorOptions(at::kFloat));
    load(*parameter, parameter->weight);
  }
  const auto context = model.context(static_cast<int64_t>(tokens.size()), at::kCPU);
  Tensor x = model.embedding().forward(at::tensor(tokens).view({1, -1}));
  for (const models::TransformerBlock& block : model.blocks()) x = block.forward(x, context);
  return model.head().logits(x)[0];
}

std::vector<int64_t> prompt(int64_t length) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < length; ++i) tokens.push_back((7 * i + 1) % 64);
  return tokens;
}

struct Corpus {
  test::TemporaryFolder folder;
  fs::path path = folder.path() / "corpus.jsonl";
  Corpus() {
    std::ofstream file(path);
    for (const char* text : {"abcdefghij", "klmnopqrst", "uv"}) file << "{\"text\": \"" << text << "\"}\n";
  }
};

std::unique_ptr<data::DataLoader> loader(const Corpus& corpus, int64_t seq_len, int64_t rows) {
  data::LoaderOptions options;
  options.sources = {{.path = corpus.path.string()}};
  options.encode = [](std::string_view text) {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(c - 'a' + 1);
    return ids;
  };
  options.tokens.vocab_size = 64;
  options.seq_len = seq_len;
  options.rows = rows;
  options.order = {.seed = 0, .shuffle = false, .repeat = false};
  return std::make_unique<data::DataLoader>(std::move(options));
}

}  // namespace

TEST_CASE("the logits of the last token are those of the whole sequence") {
  const InferenceEngine model = engine();
  const std::vector<int64_t> tokens = prompt(9);
  const Tensor logits = logits_of(tokens);
  CHECK(logits.sizes() == at::IntArrayRef({9, 64}));
  CHECK(at::allclose(logits[8], model.next_logits(tokens), 1e-5, 1e-6));
  // A longer sequence does not change what came before.
  CHECK(at::allclose(logits[4], model.next_logits(prompt(5)), 1e-4, 1e-5));
}

TEST_CASE("greedy generation takes the likeliest token each time") {
  const InferenceEngine model = engine();
  const std::vector<int64_t> made = generate(model, prompt(4), {}, {.max_tokens = 6});
  REQUIRE(made.size() == 6);
  std::vector<int64_t> tokens = prompt(4);
  for (const int64_t token : made) {
    CHECK(token == model.next_logits(tokens).argmax().item<int64_t>());
    tokens.push_back(token);
  }
}

TEST_CASE("generation ends at any EOS and at the model's last position") {
  const InferenceEngine model = engine();
  const std::vector<int64_t> free = generate(model, prompt(4), {}, {.max_tokens = 100});
  CHECK(free.size() == 20);  // of 24 positions
  for (const std::vector<int64_t>& eos : {std::vector{free[2], free[5]}, std::vector{free[5], free[2]}}) {
    const std::vector<int64_t> ended = generate(model, prompt(4), eos, {.max_tokens = 100});
    CHECK(ended.size() <= 2);
    for (const int64_t token : ended) CHECK((token != eos[0] && token != eos[1]));
  }
}

TEST_CASE("draws follow the seed and stay among the k likeliest") {
  const InferenceEngine model = engine();
  const auto draw = [&](SamplingOptions options) { return generate(model, prompt(4), {}, options); };
  const SamplingOptions hot = {.max_tokens = 12, .temperature = 1.5, .seed = 5};
  CHECK(draw(hot) == draw(hot));
  CHECK(draw(hot) != draw({.max_tokens = 12, .temperature = 1.5, .seed = 6}));
  CHECK(draw({.max_tokens = 12, .temperature = 1.5, .top_k = 1, .seed = 5}) == draw({.max_tokens = 12}));
  CHECK(draw({.max_tokens = 12, .temperature = 1e-6, .seed = 5}) == draw({.max_tokens = 12}));
}

TEST_CASE("draws have the frequencies of the softmax") {
  const std::vector<float> logits = {0.0f, std::log(2.0f), -std::numeric_limits<float>::infinity(),
                                     std::log(5.0f)};
  std::vector<int> counts(4);
  for (int64_t n = 0; n < 8000; ++n) ++counts[static_cast<size_t>(sample(logits, {.temperature = 1}, n))];
  CHECK(counts[0] == Approx(1000).margin(120));
  CHECK(counts[1] == Approx(2000).margin(160));
  CHECK(counts[2] == 0);
  CHECK(counts[3] == Approx(5000).margin(200));
  for (int64_t n = 0; n < 100; ++n) CHECK(sample(logits, {.temperature = 1, .top_k = 2}, n) % 2 == 1);
}

TEST_CASE("equal logits choose the smaller id and unusable ones are an error") {
  const std::vector<float> equal = {1, 3, 3, 2};
  CHECK(sample(equal, {}, 0) == 1);
  const std::vector<float> broken = {NAN, NAN};
  CHECK_THROWS_AS(sample(broken, {}, 0), Error);
}

TEST_CASE("evaluation is the mean over tokens whatever the batches") {
  const Corpus corpus;
  std::vector<int64_t> stream;  // the same documents by hand
  for (int64_t i = 0; i < 22; ++i) stream.push_back(i + 1);
  for (const int64_t rows : {1, 2, 5}) {
    InferenceEngine evaluated = engine();
    const auto data = loader(corpus, 4, rows);
    const Evaluation result = evaluate(evaluated, *data);
    double sum = 0;
    for (int64_t first = 0; first + 1 < 22; first += 4) {
      const int64_t count = std::min<int64_t>(4, 21 - first);
      const std::vector<int64_t> inputs(stream.begin() + first, stream.begin() + first + count);
      const Tensor logits = logits_of(inputs).to(at::kDouble);
      for (int64_t i = 0; i < count; ++i)
        sum -= at::log_softmax(logits[i], 0)[stream[static_cast<size_t>(first + i + 1)]].item<double>();
    }
    CHECK(result.tokens == 21);
    CHECK(result.sequences == 6);
    CHECK(result.loss == Approx(sum / 21).epsilon(1e-5));
    CHECK(result.perplexity == Approx(std::exp(sum / 21)).epsilon(1e-4));
  }
}

TEST_CASE("evaluations print as a table and as JSON") {
  const Evaluation result = {.loss = 2.5, .perplexity = 12.18, .tokens = 100, .sequences = 5, .seconds = 2};
  CHECK_THAT(evaluation_table(result, "out/step-5", "d.jsonl"),
             Catch::Contains("2.500000") && Catch::Contains("50 tokens/s"));
  const auto json = nlohmann::json::parse(evaluation_json(result, "out/step-5", "d.jsonl"));
  CHECK(json["loss"] == 2.5);
  CHECK(json["checkpoint"] == "out/step-5");
}

}  // namespace hyperion::inference
