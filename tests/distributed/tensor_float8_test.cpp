// FP8 layers under tensor parallelism: what does not depend on the number of ranks, and what travels.
#include <cmath>

#include <ATen/ops/exp2.h>
#include <ATen/ops/ones_like.h>

#include <catch2/catch.hpp>

#include "models/float8/linear_matmuls.h"
#include "models/float8/quantize.h"
#include "models/layers/linear_node.h"
#include "models/layers/ops.h"
#include "tests/support/divided_model.h"

namespace hyperion::models {
namespace {

using float8::Counters;
using float8::Gemm;
using float8::Granularity;
using float8::LinearMatmuls;
using float8::Recipe;
using parallel::Environment;

// Parts of 1, 2 and 4 ranks are multiples of 16.
const DividedJob kJob = {
    .heads = 4, .kv_heads = 4, .dim = 64, .head_dim = 16, .hidden = 128, .vocab = 64, .dtype = at::kBFloat16};

std::shared_ptr<Counters> convert(Transformer& model, Recipe recipe) {
  auto counters = std::make_shared<Counters>();
  const auto matmuls = std::make_shared<const LinearMatmuls>(recipe, Gemm::kEmulated, counters);
  for (const auto& [name, linear] : model.linears()) linear->set_float8(matmuls);
  return counters;
}

double relative_l2(const Tensor& a, const Tensor& b) {
  const Tensor wide = b.to(at::kDouble);
  return ((a.to(at::kDouble) - wide).norm() / wide.norm()).item<double>();
}

}  // namespace

TEST_CASE("FP8 bits of a divided weight are those of the whole one for every granularity") {
  const int ranks = GENERATE(2, 4);
  const auto results = run_ranks(ranks, [](const Environment& environment) {
    TensorGroup group(kJob, environment);
    at::manual_seed(3);
    // Every later part has larger numbers.
    const Tensor whole = (at::randn({64, 128}) * at::exp2(at::arange(64) / 8.0).unsqueeze(1) *
                          at::exp2(at::arange(128) / 16.0))
                             .to(at::kBFloat16);
    int wrong = 0;
    for (const int dim : {0, 1})
      for (const Granularity granularity : {Granularity::kTensor, Granularity::kRow, Granularity::kColumn}) {
        const float8::Scaling scaling{.granularity = granularity, .power_of_two = dim == 1};
        const std::vector<Cut> cuts = {
            {.dim = dim, .parts = group.ranks.size(), .index = group.ranks.rank()}};
        const Tensor found =
            float8::quantize(part_of(whole, cuts), scaling, {&group.ranks, dim}).values.view(at::kByte);
        wrong += !found.equal(part_of(float8::quantize(whole, scaling).values.view(at::kByte), cuts));
        // With the scale of its own numbers alone, only the last part has these bits.
        if (granularity == Granularity::kTensor)
          wrong +=
              found.equal(float8::quantize(part_of(whole, cuts), scaling).values.view(at::kByte)) ? 100 : 0;
      }
    return wrong;
  });
  for (int rank = 0; rank < ranks; ++rank) CHECK(results[rank] == (rank == ranks - 1 ? 200 : 0));
}

TEST_CASE("nodes of FP8 layers on tensor parallel ranks compute one rank's products") {
  const Recipe recipe = GENERATE(Recipe::kTensorwise, Recipe::kRowwise, Recipe::kRowwiseWithGwHp);
  const int ranks = GENERATE(2, 4);
  CAPTURE(static_cast<int>(recipe), ranks);
  struct Found {
    double outputs = 0, column_weight = 0;  // of w1 and w3; of w1
    double row_input = 0, row_weight = 0;   // gradients of w2's input and weight
    double from_plain = 1;                  // the smallest distance of these to bf16
  };
  const auto results = run_ranks(ranks, [&](const Environment& environment) {
    TensorGroup group(kJob, environment);
    const int64_t rank = group.ranks.rank();
    Transformer divided(args_of(kJob), 0, {&group.ranks}), whole(args_of(kJob)), plain(args_of(kJob));
    for (const Transformer* model : {&divided, &whole, &plain}) materialise(*model, at::kBFloat16);
    convert(divided, recipe);
    convert(whole, recipe);
    at::manual_seed(9);
    const auto random = [&](int64_t width) {
      return at::randn({1, kSeq, width}).mul_(at::exp2(at::arange(width) / 16.0)).to(at::kBFloat16);
    };
    const Tensor x = random(kJob.dim), hidden = random(kJob.hidden), grad = random(kJob.dim);
    const int64_t tokens = kSeq / ranks, units = kJob.hidden / ranks;
    struct Results {
      Tensor outputs, column_weight, row_input, row_weight;
    };
    const auto run_nodes = [&](Transformer& model, bool part) {
      const auto layers = model.linears();
      const Linear &w1 = *layers[4].second, &w3 = *layers[5].second, &w2 = *layers[6].second;
      const auto own_tokens = [&](const Tensor& t) {
        return (part ? t.narrow(1, rank * tokens, tokens) : t).contiguous().requires_grad_();
      };
      const std::vector<Tensor> outputs = column_linear(own_tokens(x), {&w1, &w3});
      const auto rows = [&](const Tensor& t) { return t.flatten(0, -2); };  // batch 1: in order of tokens
      const auto own_units = [&](const Tensor& t) { return part ? t : t.narrow(-1, rank * units, units); };
      Tensor own_hidden = hidden.flatten(0, 1);
      if (part)
        own_hidden = own_hidden.narrow(1, rank * units, units).contiguous().view({ranks, 1, tokens, units});
      const Tensor leaf = (part ? own_hidden : hidden).detach().requires_grad_();
      torch::autograd::backward({outputs[0]}, {(part ? own_hidden : hidden).view(outputs[0].sizes())});
      const Tensor sum = ops::residual_sum(own_tokens(x), row_linear(leaf, w2));
      torch::autograd::backward({sum}, {own_tokens(grad).detach()});
      const auto own_weight = [&](const Linear& layer) {
        const Tensor weight_grad = layer.weight()->weight.grad();
        return part ? weight_grad : weight_grad.narrow(layer.weight()->split.value(), rank * units, units);
      };
      return Results{at::cat({own_units(rows(outputs[0])), own_units(rows(outputs[1]))}).detach(),
                     own_weight(w1), own_units(rows(leaf.grad())), own_weight(w2)};
    };
    const Results found = run_nodes(divided, true), expected = run_nodes(whole, false),
                  bf16 = run_nodes(plain, false);
    Found distances{relative_l2(found.outputs, expected.outputs),
                    relative_l2(found.column_weight, expected.column_weight),
                    relative_l2(found.row_input, expected.row_input),
                    relative_l2(found.row_weight, expected.row_weight)};
    distances.from_plain = std::min(relative_l2(bf16.outputs, expected.outputs),
                                    relative_l2(bf16.row_input, expected.row_input));
    return distances;
  });
  for (const Found& rank : results) {
    CHECK(rank.outputs < 1e-3);
    CHECK(rank.row_input < 1e-3);
    CHECK(rank.from_plain > 1e-2);
    if (recipe == Recipe::kTensorwise) continue;  // one scale of what each rank has alone
    CHECK(rank.column_weight < 1e-3);
    CHECK(rank.row_weight < 1e-3);
  }
}

TEST_CASE("FP8 on tensor parallel ranks computes what one rank does but for scales of its own operands") {
  const Recipe recipe = GENERATE(Recipe::kTensorwise, Recipe::kRowwise, Recipe::kRowwiseWithGwHp);
  const int ranks = GENERATE(2, 4);
  CAPTURE(static_cast<int>(recipe), ranks);
  struct Found {
    double loss = 0, whole = 0, plain = 0;  // losses: divided, on one rank, and in bf16
    double gradients = 0, from_plain = 0;   // relative differences of the first block's w1 to those
    int64_t products = 0, whole_products = 0;
  };
  const auto results = run_ranks(ranks, [&](const Environment& environment) {
    TensorGroup group(kJob, environment);
    Transformer divided(args_of(kJob), 0, {&group.ranks}), whole(args_of(kJob)), plain(args_of(kJob));
    for (const Transformer* model : {&divided, &whole, &plain}) materialise(*model, at::kBFloat16);
    const auto divided_counts = convert(divided, recipe), whole_counts = convert(whole, recipe);
    const Run found = run(kJob, divided), expected = run(kJob, whole), bf16 = run(kJob, plain);
    Found result = {found.loss.item<double>(), expected.loss.item<double>(), bf16.loss.item<double>()};
    const std::vector<ParameterPtr> parameters = divided.parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i]->fqn != "layers.0.feed_forward.w1.weight") continue;
      const auto part = [&](const Run& run) { return part_of(run.parameters[i], parameters[i]->cuts); };
      result.gradients = relative_l2(found.parameters[i], part(expected));
      result.from_plain = relative_l2(found.parameters[i], part(bf16));
    }
    result.products = divided_counts->products;
    result.whole_products = whole_counts->products;
    return result;
  });
  for (const Found& rank : results) {
    CHECK(rank.loss == results[0].loss);
    CHECK(std::abs(rank.loss / rank.whole - 1) < 4e-3);  // 2^-8: a unit in the last place of bf16's logits
    CHECK(rank.loss != rank.plain);
    CHECK(rank.gradients < 1.3 * rank.from_plain);  // two roundings of gradients to e5m2 differ as much
    CHECK(rank.products == rank.whole_products);
  }
}

// The same operands, scales and bits of them: only products may add up in another order.
TEST_CASE("FP8 nodes in pieces compute the products of the plain form and send its bytes") {
  const Recipe recipe = GENERATE(Recipe::kTensorwise, Recipe::kRowwise, Recipe::kRowwiseWithGwHp);
  const int ranks = GENERATE(2, 4);
  const auto checkpoint = GENERATE(ActivationCheckpoint::kNone, ActivationCheckpoint::kSelectiveOp);
  CAPTURE(static_cast<int>(recipe), ranks, static_cast<int>(checkpoint));
  struct Found {
    Run run;
    int64_t products = 0, bytes = 0, sent = 0;
  };
  const auto results = run_ranks(ranks, [&](const Environment& environment) {
    DividedJob job = kJob;
    job.layers = 1;
    job.checkpoint = checkpoint;
    TensorGroup group(job, environment);
    const auto compute = [&](bool chunked) {
      job.chunked = chunked;
      Transformer model(args_of(job), 0, group.dims(job));
      materialise(model, at::kBFloat16);
      const auto counters = convert(model, recipe);
      group.ledger.reset();
      Found found{run(job, model)};
      found.products = counters->products;
      found.bytes = group.ledger.total_bytes();
      found.sent = group.ledger.entry("tp", "send").bytes;
      return found;
    };
    const Found plain = compute(false), pieces = compute(true);
    double worst = 0;
    for (const auto list : {&Run::forward, &Run::backward, &Run::parameters})
      for (size_t i = 0; i < (plain.run.*list).size(); ++i)
        worst = std::max(worst, relative_l2((pieces.run.*list)[i], (plain.run.*list)[i]));
    return std::array<double, 5>{worst, static_cast<double>(pieces.products - plain.products),
                                 static_cast<double>(pieces.bytes - plain.bytes),
                                 static_cast<double>(plain.sent), static_cast<double>(pieces.sent)};
  });
  for (const auto& [worst, products, bytes, plain_sent, sent] : results) {
    CHECK(worst < 1e-3);
    CHECK(products == 0);
    CHECK(bytes == 0);
    CHECK(plain_sent == 0);
    // Gathers of four nodes' inputs and gradients, and as many sums in bf16; what is repeated: one gather.
    const double times = checkpoint == ActivationCheckpoint::kNone ? 4 : 6;
    const double n = static_cast<double>(kJob.batch * kSeq * kJob.dim * (ranks - 1)) / ranks;
    CHECK(sent == n * (times * (recipe == Recipe::kTensorwise ? 1 : 2) + 4 * 2));
  }
}

TEST_CASE("tensor-wise FP8 gathers bytes and row-wise recipes the compute dtype") {
  DividedJob job = kJob;
  job.shared_memory = GENERATE(true, false);
  for (const auto& [recipe, width] : {std::pair(Recipe::kTensorwise, 1), std::pair(Recipe::kRowwise, 2),
                                      std::pair(Recipe::kRowwiseWithGwHp, 2)}) {
    const auto results = run_ranks(2, [&, recipe = recipe](const Environment& environment) {
      TensorGroup group(job, environment);
      Transformer model(args_of(kJob), 0, {&group.ranks});
      materialise(model, at::kBFloat16);
      convert(model, recipe);
      const Microbatch batch = batch_of(kJob, model);
      const Tensor x = at::randn({kJob.batch, kSeq / 2, kJob.dim}).to(at::kBFloat16).requires_grad_();
      const Tensor output = model.blocks()[0].forward(x, batch.context);
      torch::autograd::backward({output}, {at::ones_like(output)});
      return std::array<int64_t, 2>{group.ledger.entry("tp", "all_gather").bytes,
                                    group.ledger.entry("tp", "reduce_scatter").bytes};
    });
    const int64_t numbers = kJob.batch * kSeq * kJob.dim / 2;
    for (const auto& [gathered, scattered] : results) {
      CHECK(gathered == 4 * numbers * width);
      CHECK(scattered == 4 * numbers * 2);
    }
  }
}

TEST_CASE("FP8 products on tensor parallel ranks are not repeated where the sum of the ranks is kept") {
  for (const auto& [checkpoint, again] :
       {std::pair(ActivationCheckpoint::kNone, 0), std::pair(ActivationCheckpoint::kFull, 6),
        std::pair(ActivationCheckpoint::kSelectiveOp, 2)}) {
    DividedJob job = kJob;
    job.checkpoint = checkpoint;
    const auto results = run_ranks(2, [&](const Environment& environment) {
      TensorGroup group(job, environment);
      Transformer model(args_of(job), 0, {&group.ranks});
      materialise(model, at::kBFloat16);
      const auto counters = convert(model, Recipe::kTensorwise);
      run(job, model);
      return counters->products;
    });
    // Three of each of seven layers; of the head two for the gradients, and its logits twice (loss_sum).
    for (const int64_t products : results) CHECK(products == 2 * (21 + again) + 4);
  }
}

TEST_CASE("an FP8 layer computes the same bits beside one that multiplies in the compute dtype") {
  DividedJob job = kJob;
  job.chunked = GENERATE(false, true);
  const auto results = run_ranks(2, [&](const Environment& environment) {
    TensorGroup group(job, environment);
    Transformer model(args_of(job), 0, group.dims(job));
    materialise(model, at::kBFloat16);
    Linear plain = *model.linears()[4].second;  // layers.0.feed_forward.w1
    convert(model, Recipe::kTensorwise);
    const Linear& w1 = *model.linears()[4].second;
    const Linear& w3 = *model.linears()[5].second;
    at::manual_seed(50 + group.ranks.rank());
    const Tensor x = at::randn({kJob.batch, kSeq / 2, kJob.dim}).to(at::kBFloat16);
    const std::vector<Tensor> both = column_linear(x, {&w1, &w3}), mixed = column_linear(x, {&plain, &w3}),
                              neither = column_linear(x, {&plain, &plain});
    return static_cast<int>(mixed[1].equal(both[1])) + 2 * static_cast<int>(mixed[0].equal(neither[0])) +
           4 * static_cast<int>(!mixed[0].equal(both[0]));
  });
  for (const int equal : results) CHECK(equal == 7);
}

}  // namespace hyperion::models
