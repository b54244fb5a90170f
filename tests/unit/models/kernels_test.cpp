// Each fused kernel against its plain twin, in fp32 and bf16, with sizes that fill no vector and no task.
#include "models/kernels/kernels.h"

#include <cstdio>
#include <cstdlib>

#include <catch2/catch.hpp>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/logspace.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include "models/args/sequence_parts.h"
#include "models/kernels/attention/cpu.h"
#include "models/kernels/common/rows.h"

namespace hyperion::models {

using at::Tensor;

namespace {

// Ends the process as skipped (ctest's SKIP_RETURN_CODE) where HYPERION_CPU_INSTRUCTIONS names instructions
// that this processor lacks.
void skip_without_named_instructions() {
  using enum kernels::cpu::Instructions;
  const char* wanted = std::getenv("HYPERION_CPU_INSTRUCTIONS");
  if (wanted == nullptr) return;
  for (const kernels::cpu::Instructions set : {kAvx2, kAvx512, kAvx512Bf16})
    if (kernels::cpu::text_of(set) == wanted && !kernels::cpu::processor_has(set)) {
      std::printf("skipped: this processor has no %s\n", wanted);
      std::fflush(stdout);
      std::_Exit(77);
    }
}

// Equal up to a last place: of fp32 after some sums, or one rounding of bf16.
bool close(const Tensor& a, const Tensor& b) {
  const bool half = a.scalar_type() == at::kBFloat16;
  return a.scalar_type() == b.scalar_type() &&
         at::allclose(a, b, half ? 1.0 / 128 : 2e-5, half ? 1e-2 : 1e-5, true);
}

Tensor values(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::randn(shape).to(dtype);
}

}  // namespace

TEST_CASE("fused norm and rope and gated activations equal their plain twins") {
  at::manual_seed(4);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  const Tensor x = values({3, 37, 45}, dtype), w = values({45}, dtype), g = values({3, 37, 45}, dtype);
  const auto norm = kernels::table().rms_norm(x, w, 1e-5), plain = kernels::plain::rms_norm(x, w, 1e-5);
  CHECK(close(norm.output, plain.output));
  CHECK(close(norm.rstd, plain.rstd));
  const auto [dx, dw] = kernels::table().rms_norm_backward(g, x, w, norm.rstd);
  const auto [pdx, pdw] = kernels::plain::rms_norm_backward(g, x, w, plain.rstd);
  CHECK(close(dx, pdx));
  CHECK(close(dw, pdw));

  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    CHECK(close(kernels::table().gated_activation(x, g, activation),
                kernels::plain::gated_activation(x, g, activation)));
    const auto [dgate, dup] = kernels::table().gated_activation_backward(g, x, x * 2, activation);
    const auto [pgate, pup] = kernels::plain::gated_activation_backward(g, x, x * 2, activation);
    CHECK(close(dgate, pgate));
    CHECK(close(dup, pup));
  }

  for (const int64_t half : {7, 8, 32, 64, 70}) {
    const Tensor heads = values({2, 5, 3, 2 * half}, dtype), angles = at::rand({5, half}),
                 each = at::rand({2, 5, half});
    for (RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalfSplit})
      for (const Tensor& a : {angles, each})
        for (bool inverse : {false, true})
          CHECK(close(kernels::cpu::rope(heads, a.cos(), a.sin(), style, inverse),
                      kernels::plain::rope(heads, a.cos(), a.sin(), style, inverse)));
  }
}

TEST_CASE("products and sums of a row have the same bits wherever the row lies in memory") {
  at::manual_seed(5);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  // Odd widths, so that the rows begin at different places of a vector.
  for (const int64_t width : {5, 45, 143}) {
    const Tensor all = at::arange(16, at::kInt);
    const auto copies = [&] { return values({1, width}, dtype).expand({16, width}).contiguous(); };
    const Tensor a = copies(), b = copies(), products = kernels::table().products_of_rows(a, b, all),
                 sums = kernels::table().sum_rows(a, all, at::full({16, 1}, 0.3), b, 1);
    CHECK(products.eq(products[0]).all().item<bool>());
    CHECK(sums.eq(sums[0]).all().item<bool>());
    CHECK(close(products, kernels::plain::products_of_rows(a, b, all)));
  }
}

TEST_CASE("fused kernels of any number of rows and columns equal their plain twins") {
  at::manual_seed(14);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {1, 700}, {300, 1}, {33, 15}, {70, 256}, {129, 1031}}) {
    CAPTURE(rows, columns);
    const auto random = [&] { return values({rows, columns}, dtype); };
    const Tensor x = random(), residual = random(), g = random(), weight = values({columns}, dtype);
    const auto ours = kernels::table().add_rms_norm(x, residual, weight, 1e-5),
               plain = kernels::plain::add_rms_norm(x, residual, weight, 1e-5);
    CHECK(ours.sum.equal(plain.sum));
    CHECK(close(ours.output, plain.output));
    CHECK(close(ours.rstd, plain.rstd));
    const auto [dx, dw] = kernels::table().add_rms_norm_backward(g, x, ours.sum, weight, ours.rstd, {});
    const auto [pdx, pdw] = kernels::plain::add_rms_norm_backward(g, x, ours.sum, weight, ours.rstd, {});
    CHECK((dx - pdx).abs().max().item<double>() <= (dtype == at::kFloat ? 1e-4 : 6e-2));
    CHECK((dw - pdw).abs().max().item<double>() <= (dtype == at::kFloat ? 1e-3 : 2e-1));

    CHECK(close(kernels::table().gated_activation(x * 4, g, Activation::kSilu),
                kernels::plain::gated_activation(x * 4, g, Activation::kSilu)));
    // halves of one product, and apart
    const Tensor both = at::cat({x * 4, residual}, 1);
    const auto halves = kernels::table().gated_activation_backward(
                   g, both.narrow(1, 0, columns), both.narrow(1, columns, columns), Activation::kSilu),
               apart = kernels::table().gated_activation_backward(g, x * 4, residual, Activation::kSilu),
               twin = kernels::plain::gated_activation_backward(g, x * 4, residual, Activation::kSilu);
    CHECK(close(apart.first, twin.first));
    CHECK(close(apart.second, twin.second));
    CHECK(halves.first.equal(apart.first));
    CHECK(halves.second.equal(apart.second));
    CHECK(halves.second.storage_offset() == columns);
    CHECK(halves.second.is_alias_of(halves.first));
  }
}

TEST_CASE("fused kernels have the same bits on any number of threads") {
  at::manual_seed(15);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  const Tensor x = values({2, 333, 4, 24}, dtype), y = values({2, 333, 4, 24}, dtype),
               w = values({24}, dtype), angles = at::rand({333, 12}), labels = at::randint(0, 96, {666}),
               scale = at::full({}, 0.125);
  const auto results = [&] {
    const auto norm = kernels::table().add_rms_norm(x, y, w, 1e-5);
    const auto [dx, dw] = kernels::table().add_rms_norm_backward(y, x, norm.sum, w, norm.rstd, {});
    const auto [dgate, dup] = kernels::table().gated_activation_backward(y, x, y, Activation::kSilu);
    const Tensor logits = x.clone().view({666, 96});
    const Tensor loss = kernels::table().cross_entropy(logits, labels, &scale, 0);
    const auto turned = kernels::table().rope_heads({x, y, y}, angles.cos(), angles.sin(),
                                                    RopeStyle::kInterleaved, /*parts=*/1);
    const auto back = kernels::table().rope_heads_backward(turned, angles.cos(), angles.sin(),
                                                           RopeStyle::kInterleaved, /*parts=*/1);
    return std::vector<Tensor>{norm.sum, norm.output, norm.rstd, dx,     dw,
                               dgate,    dup,         logits,    loss,   turned.q,
                               turned.k, back.q,      back.k,    back.v, kernels::table().sum_of_squares(x)};
  };
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const std::vector<Tensor> one = results();
  for (const int count : {2, 3}) {
    at::set_num_threads(count);
    const std::vector<Tensor> several = results();
    for (size_t i = 0; i < one.size(); ++i) {
      CAPTURE(count, i);
      CHECK(several[i].equal(one[i]));
    }
  }
  at::set_num_threads(threads);
}

TEST_CASE("the loss of many rows has the same bits on any number of threads") {
  at::manual_seed(18);
  const int64_t rows = 100'000;  // libtorch adds up more than 32,768 numbers on several threads
  const Tensor logits = at::randn({rows, 4}), labels = at::randint(0, 4, {rows}),
               losses = at::rand({rows}, at::kDouble) * at::logspace(-8, 8, rows);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Tensor loss = kernels::table().cross_entropy(logits.clone(), labels, nullptr, 0),
               sum = kernels::sum_of_losses(losses);
  CHECK(sum.item<double>() == Approx(losses.sum().item<double>()).epsilon(1e-12));
  for (const int count : {2, 3}) {
    CAPTURE(count);
    at::set_num_threads(count);
    CHECK(kernels::table().cross_entropy(logits.clone(), labels, nullptr, 0).equal(loss));
    CHECK(kernels::sum_of_losses(losses).equal(sum));
  }
  at::set_num_threads(threads);
}

TEST_CASE("products of our own equal exact ones for any shape and layout on any number of threads") {
  skip_without_named_instructions();
  at::manual_seed(16);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  struct Shape {
    int64_t m, k, n;
  };
  const int threads = at::get_num_threads();
  int taken = 0;
  for (const Shape& s : std::vector<Shape>{{32, 64, 128},
                                           {37, 130, 71},
                                           {1031, 34, 65},
                                           {97, 256, 1},
                                           {33, 7777, 130},
                                           {256, 2047, 100},
                                           {64, 3001, 64},
                                           {200, 3000, 1500},
                                           {70, 9001, 300},
                                           {40, 32, 2048}})
    for (const bool columns_of_a : {false, true})
      for (const bool columns_of_b : {false, true}) {
        Tensor a = columns_of_a ? values({s.k, s.m}, dtype).t() : values({s.m, s.k}, dtype),
               b = columns_of_b ? values({s.n, s.k}, dtype).t() : values({s.k, s.n}, dtype);
        if (!kernels::cpu::takes_matmul(a, b)) continue;
        ++taken;
        CAPTURE(s.m, s.k, s.n, columns_of_a, columns_of_b);
        at::set_num_threads(1);
        const Tensor one = kernels::cpu::matmul(a, b), exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
        const double largest = std::sqrt(static_cast<double>(s.k));
        CHECK(at::allclose(one.to(at::kDouble), exact, dtype == at::kFloat ? 1e-5 : 1.0 / 250,
                           largest * (dtype == at::kFloat ? 1e-5 : 1e-4)));
        for (const int count : {2, 3}) {
          at::set_num_threads(count);
          CHECK(kernels::cpu::matmul(a, b).equal(one));
        }
        // operands within larger tensors
        const Tensor wide = at::cat({a.t(), a.t()}, 0).t(), part = wide.narrow(1, s.k, s.k);
        if (kernels::cpu::takes_matmul(part, b)) CHECK(kernels::cpu::matmul(part, b).equal(one));
        const Tensor rows = at::cat({a, a}, 1).narrow(1, s.k, s.k);
        if (kernels::cpu::takes_matmul(rows, b)) CHECK(kernels::cpu::matmul(rows, b).equal(one));
        a[5].fill_(NAN);
        const Tensor bad = kernels::cpu::matmul(a, b).isnan();
        CHECK(bad[5].all().item<bool>());
        CHECK(bad.sum().item<int64_t>() == s.n);
      }
  at::set_num_threads(threads);
  if (taken == 0) WARN("this processor multiplies by libtorch's products");
}

TEST_CASE("products that are too small to pack or of other dtypes stay with libtorch") {
  const auto taken = [](at::IntArrayRef a, at::IntArrayRef b, at::ScalarType left, at::ScalarType right) {
    return kernels::cpu::takes_matmul(at::zeros(a, left), at::zeros(b, right));
  };
  CHECK_FALSE(taken({4, 512}, {512, 512}, at::kFloat, at::kFloat));
  CHECK_FALSE(taken({64, 16}, {16, 64}, at::kFloat, at::kFloat));
  CHECK_FALSE(taken({512, 512}, {512, 512}, at::kDouble, at::kDouble));
  CHECK_FALSE(taken({512, 512}, {512, 512}, at::kFloat, at::kBFloat16));
  CHECK_FALSE(kernels::cpu::takes_matmul(at::zeros({512, 1024}).slice(1, 0, 1024, 2), at::zeros({512, 512})));
  // the gradient of a weight from many tokens, whose rows would be packed again and again
  CHECK_FALSE(kernels::cpu::takes_matmul(at::zeros({16384, 64}).t(), at::zeros({16384, 64})));
  CHECK_FALSE(kernels::cpu::takes_matmul(at::zeros({32768, 64}, at::kBFloat16).t(),
                                         at::zeros({32768, 64}, at::kBFloat16)));
}

TEST_CASE("fused cross entropy equals its plain twin with ignored labels") {
  at::manual_seed(6);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  Tensor logits = values({19, 331}, dtype) * 5, labels = at::randint(0, 331, {19});
  labels[3] = labels[18] = kernels::kIgnoredLabel;
  Tensor other = logits.clone();
  const Tensor scale = at::full({}, 0.125);
  const Tensor forward_only = kernels::table().cross_entropy(logits, labels, nullptr, 0);
  const Tensor loss = kernels::table().cross_entropy(logits, labels, &scale, 0);
  const Tensor expected = kernels::plain::cross_entropy(other, labels, &scale, 0);
  CHECK(forward_only.equal(loss));
  CHECK(loss.item<double>() == Approx(expected.item<double>()).epsilon(1e-5));
  CHECK(close(logits, other));
  CHECK(logits[3].abs().max().item<double>() == 0);
}

TEST_CASE("rope reads and gives back sequences that lie in parts") {
  at::manual_seed(12);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kDouble);
  const auto rope = dtype == at::kDouble ? kernels::plain::rope : kernels::cpu::rope;
  const Tensor x = values({2, 12, 3, 14}, dtype), each = at::rand({2, 12, 7});
  const auto in_parts = [](const Tensor& t) { return t.unflatten(1, {3, 4}).transpose(0, 1).contiguous(); };
  for (RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalfSplit})
    for (const Tensor& a : {each[0], each}) {
      const Tensor turned = rope(x, a.cos(), a.sin(), style, /*inverse=*/false, 1),
                   back = rope(x, a.cos(), a.sin(), style, /*inverse=*/true, 1);
      CHECK(rope(in_parts(x), a.cos(), a.sin(), style, false, /*parts=*/3).equal(turned));
      CHECK(rope(x, a.cos(), a.sin(), style, true, /*parts=*/3).equal(in_parts(back)));
    }
}

TEST_CASE("statistics of parts of the vocabulary give the loss and gradient of whole logits") {
  at::manual_seed(13);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kDouble);
  const Tensor logits = values({19, 331}, dtype) * 5;
  Tensor labels = at::randint(0, 331, {19});
  labels[3] = labels[18] = kernels::kIgnoredLabel;
  const Tensor scale = at::full({}, 0.125, dtype == at::kDouble ? at::kDouble : at::kFloat);
  const double z_loss = GENERATE(0.0, 0.01);
  Tensor whole = logits.clone();
  const Tensor losses = kernels::table().cross_entropy(whole, labels, &scale, z_loss),
               loss = losses.flatten()[0];
  if (z_loss > 0) {  // against autograd in fp64
    const Tensor wide = logits.to(at::kDouble).requires_grad_(), counted = labels.ne(kernels::kIgnoredLabel);
    const Tensor z = (wide.logsumexp(1).square() * counted).sum();
    const Tensor sum =
        at::cross_entropy_loss(wide, labels, {}, at::Reduction::Sum, kernels::kIgnoredLabel) + z_loss * z;
    const Tensor grad = torch::autograd::grad({sum * 0.125}, {wide})[0];
    CHECK(losses[1].item<double>() == Approx(z.item<double>()).epsilon(dtype == at::kDouble ? 1e-12 : 1e-6));
    CHECK(at::allclose(whole.to(at::kDouble), grad, dtype == at::kBFloat16 ? 1.0 / 256 : 1e-5, 1e-7));
    Tensor unscaled = logits.clone();
    kernels::table().cross_entropy(unscaled, labels, &scale, 0);
    CHECK_FALSE(unscaled.equal(whole));
  }

  const std::vector<std::pair<int64_t, int64_t>> parts = {{0, 150}, {150, 181}, {331, 0}};
  for (const bool plain : {false, true}) {
    std::vector<Tensor> statistics;
    for (const auto& [first, columns] : parts) {
      const Tensor part = logits.narrow(1, first, columns).contiguous();
      const kernels::VocabPart place = {first, 331};
      statistics.push_back(plain ? kernels::plain::vocab_statistics(part, labels, place)
                                 : kernels::table().vocab_statistics(part, labels, place));
    }
    const Tensor all = at::stack(statistics);
    const Tensor lse = (all.select(2, 0) + all.select(2, 1).log()).logsumexp(0),
                 picked = all.select(2, 2).sum(0);
    CHECK(((lse - picked) * labels.ne(kernels::kIgnoredLabel)).sum().item<double>() ==
          Approx(loss.item<double>()).epsilon(1e-5));
    for (const auto& [first, columns] : parts) {
      const Tensor part = logits.narrow(1, first, columns).contiguous();
      const kernels::VocabPart place = {first, 331};
      if (plain)
        kernels::plain::vocab_gradient(part, labels, place, lse, scale, z_loss);
      else
        kernels::table().vocab_gradient(part, labels, place, lse, scale, z_loss);
      CHECK(close(part, whole.narrow(1, first, columns)));
    }
  }
  CHECK_THROWS(kernels::table().vocab_statistics(at::zeros({1, 4}), at::full({1}, 9, at::kLong), {4, 8}));
}

TEST_CASE("the vector exponential is exact to three units in the last place and keeps infinities and NaN") {
  // softmax(x, 0, 1) is exp(x)
  const Tensor x = at::linspace(-87.3, 88.7, 100001), y = x.clone();
  kernels::rows::softmax(y.data_ptr<float>(), 0.0F, 1.0F, y.numel());
  const Tensor exact = x.to(at::kDouble).exp();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr double kLargest =
      4e-6;  // without the clones for newer processors, and so without fused multiply-add
#else
  constexpr double kLargest = 3.6e-7;
#endif
  CHECK(((y.to(at::kDouble) - exact) / exact).abs().max().item<double>() < kLargest);
  std::array<float, 4> odd = {-INFINITY, INFINITY, NAN, -200.0F};
  kernels::rows::softmax(odd.data(), 0.0F, 1.0F, 4);
  CHECK(odd[0] == 0.0F);
  CHECK(odd[1] == INFINITY);
  CHECK(std::isnan(odd[2]));
  CHECK(odd[3] == 0.0F);
}

TEST_CASE("rows round to bf16 as libtorch does") {
  const Tensor x = at::cat({at::randn({1000}), at::tensor({1.0F + 1.0F / 256, 1.0F + 3.0F / 256, -0.0F,
                                                           3.4e38F, float(INFINITY), float(NAN), 1e-40F})});
  Tensor ours = at::empty_like(x, at::kBFloat16);
  kernels::rows::narrow(x.data_ptr<float>(), ours.data_ptr<c10::BFloat16>(), x.numel());
  CHECK(at::allclose(ours.to(at::kFloat), x.to(at::kBFloat16).to(at::kFloat), 0, 0, true));
  Tensor back = at::empty_like(x);
  kernels::rows::widen(ours.data_ptr<c10::BFloat16>(), back.data_ptr<float>(), x.numel());
  CHECK(at::allclose(back, ours.to(at::kFloat), 0, 0, true));
}

TEST_CASE("the sum of squares of millions of numbers is precise") {
  at::manual_seed(8);
  const Tensor x = at::randn({5000001});
  const double exact = kernels::plain::sum_of_squares(x).item<double>();
  CHECK(kernels::table().sum_of_squares(x).item<double>() == Approx(exact).epsilon(2e-7));
  CHECK(kernels::table().sum_of_squares(x.to(at::kBFloat16)).item<double>() == Approx(exact).epsilon(1e-4));
  CHECK_FALSE(std::isfinite(kernels::table().sum_of_squares(at::full({5000}, NAN)).item<double>()));
}

TEST_CASE("non-finite activations stay visible through the fused kernels") {
  Tensor x = at::ones({2, 8});
  x[0][3] = NAN;
  CHECK(kernels::table().rms_norm(x, at::ones({8}), 1e-5).output[0].isnan().all().item<bool>());
  CHECK(kernels::table().gated_activation(x, x, Activation::kSilu)[0][3].isnan().item<bool>());
  CHECK_FALSE(
      kernels::table().cross_entropy(x, at::zeros({2}, at::kLong), nullptr, 0).isfinite().item<bool>());
}

TEST_CASE("chunks of keys and values are those of each rank's parts of the sequence, in both forms") {
  namespace plain = kernels::plain;
  namespace cpu = kernels::cpu;
  at::manual_seed(15);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  const auto chunk_dtype = GENERATE(at::kFloat, at::kBFloat16);
  if (dtype == at::kFloat && chunk_dtype == at::kBFloat16) return;  // a sum is not narrower than its terms
  struct Case {
    int ranks;
    int64_t batch, tokens, heads, head_dim;
    bool head_tail;
  };
  for (const Case& c : {Case{2, 1, 3, 2, 16, true}, Case{3, 2, 5, 1, 7, true}, Case{4, 3, 1, 3, 8, false}}) {
    const int64_t parts = c.head_tail ? 2 : 1, all = parts * c.ranks, length = all * c.tokens;
    const Tensor k = values({c.batch, length, c.heads, c.head_dim}, dtype).transpose(1, 2),
                 v = values({c.batch, c.heads, length, c.head_dim}, dtype);
    for (int64_t reached = 0; reached <= all; ++reached) {
      CAPTURE(dtype, chunk_dtype, c.ranks, c.head_tail, reached);
      const auto before = [&](const Tensor& t) { return t.narrow(2, 0, reached * c.tokens); };
      const Tensor chunks = at::full({parts, c.ranks, 2, c.batch, c.tokens, c.heads, c.head_dim}, 3.0,
                                     at::TensorOptions(chunk_dtype)),
                   of_cpu = chunks.clone();
      plain::pack_keys(chunks, before(k), before(v));
      cpu::pack_keys(of_cpu, before(k), before(v));
      CHECK(of_cpu.equal(chunks));
      for (int rank = 0; rank < c.ranks; ++rank) {
        const auto ranges = sequence_parts(length, {c.ranks, rank, c.head_tail});
        for (int64_t part = 0; part < parts; ++part)
          for (const auto& [which, keys] : {std::pair(0, k), {1, v}}) {
            const SequenceRange& range = ranges[part];
            const Tensor wanted = keys.narrow(2, range.first, c.tokens).transpose(1, 2).to(chunk_dtype),
                         found = chunks[part][rank][which];
            CHECK((range.first < reached * c.tokens ? found.equal(wanted) : found.eq(0).all().item<bool>()));
          }
      }
      const Tensor keys = at::full({2, c.batch, reached * c.tokens, c.heads, c.head_dim}, 3.0,
                                   at::TensorOptions(dtype)),
                   keys_of_cpu = keys.clone();
      for (int64_t part = 0; part < parts; ++part) {  // one after the other, as they arrive
        plain::unpack_keys(keys, chunks.narrow(0, part, 1), part);
        cpu::unpack_keys(keys_of_cpu, chunks.narrow(0, part, 1), part);
      }
      CHECK(keys[0].equal(before(k).transpose(1, 2)));
      CHECK(keys[1].equal(before(v).transpose(1, 2)));
      CHECK(keys_of_cpu.equal(keys));
      const Tensor sums = chunks.clone(), sums_of_cpu = chunks.clone(), more = at::zeros_like(chunks);
      plain::add_keys(sums, before(v), before(k));
      cpu::add_keys(sums_of_cpu, before(v), before(k));
      plain::pack_keys(more, before(v), before(k));
      CHECK(sums.equal(chunks + more));
      CHECK(sums_of_cpu.equal(sums));
    }
  }
}

}  // namespace hyperion::models
