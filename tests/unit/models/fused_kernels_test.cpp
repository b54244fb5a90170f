// The fused CUDA kernels without a GPU: their source on CPU threads, with the launches that a GPU would get,
// against the plain forms and their derivatives; and their column of the table. tests/gpu runs the
// compiled ones.
#include <catch2/catch.hpp>

#include <ATen/Context.h>
#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "base/device/device_library.h"
#include "models/kernels/kernels.h"

// The kernels come after what stands in for CUDA.
// clang-format off
#include "tests/unit/models/cuda_on_cpu.h"
#include "models/kernels/cross_entropy/cuda.cuh"
#include "models/kernels/gated_activation/cuda.cuh"
#include "models/kernels/rms_norm/cuda.cuh"
#include "models/kernels/rope/cuda.cuh"
#include "models/kernels/cross_entropy/cuda.h"
#include "models/kernels/gated_activation/cuda.h"
#include "models/kernels/rms_norm/cuda.h"
#include "models/kernels/rope/cuda.h"
// clang-format on

namespace hyperion::models {

using at::Tensor;
namespace own = kernels::cuda;
using kernels::Heads;
namespace plain = kernels::plain;

namespace {

constexpr auto kSilu = Activation::kSilu;

Tensor bits(const Tensor& x) {
  const Tensor dense = x.contiguous();
  return dense.view(dense.element_size() == 2 ? at::kShort : at::kInt);
}

// Equal bytes, except that a NaN equals every other.
bool same_bits(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         (bits(a).eq(bits(b)) | (a.isnan() & b.isnan())).all().item<bool>();
}

// Up to `roundings` roundings of bf16, or sums of fp32 in another order.
bool close(const Tensor& a, const Tensor& b, double roundings = 1) {
  const bool half = a.scalar_type() == at::kBFloat16;
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         at::allclose(a.to(at::kDouble), b.to(at::kDouble), half ? roundings / 256 : 1e-5, half ? 1e-4 : 1e-6,
                      /*equal_nan=*/true);
}

// Numbers around 1 with some that are hard: infinities, NaN, zeros of both signs, huge and tiny ones.
Tensor numbers(at::IntArrayRef shape, at::ScalarType dtype, bool hard = false) {
  Tensor x = at::randn(shape);
  if (hard) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    constexpr float kHard[] = {0.0F,   -0.0F,   1e-30F, -1e-40F,   3e38F,      -3e38F, 88.0F,
                               -88.0F, -104.0F, 1e18F,  kInfinity, -kInfinity, NAN};
    Tensor flat = x.view(-1);
    for (int64_t i = 0; i < flat.numel(); i += 5) flat[i] = kHard[i / 5 % std::ssize(kHard)];
  }
  return x.to(dtype);
}

// Part of a wider tensor, so that rows have gaps.
Tensor part_of_wider(const Tensor& x, int64_t before, int64_t after) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() += before + after;
  const Tensor part = at::full(shape, 7.0, x.options()).narrow(-1, before, x.size(-1));
  part.copy_(x);
  return part;
}

}  // namespace

TEST_CASE("the source of the CUDA RoPE turns heads of one product as the plain form, bit for bit") {
  at::manual_seed(1);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  const auto style = GENERATE(RopeStyle::kInterleaved, RopeStyle::kHalfSplit);
  struct Case {
    int64_t batch, length, heads, kv_heads, head_dim, parts;
    bool by_document;
  };
  for (const Case& c :
       {Case{2, 6, 4, 2, 16, 1, false}, Case{1, 1, 1, 1, 2, 1, false}, Case{2, 6, 3, 1, 32, 3, true},
        Case{2, 4, 3, 3, 14, 2, true}, Case{1, 4, 5, 2, 128, 1, true}, Case{2, 4, 2, 2, 64, 4, false}}) {
    CAPTURE(dtype, c.batch, c.length, c.heads, c.kv_heads, c.head_dim, c.parts);
    const int64_t all = c.heads + 2 * c.kv_heads;
    std::vector<int64_t> shape = {c.batch, c.length, all * c.head_dim};
    if (c.parts > 1) shape = {c.parts, c.batch, c.length / c.parts, all * c.head_dim};
    const Tensor product = numbers(shape, dtype, /*hard=*/true).unflatten(-1, {all, c.head_dim});
    const Heads x = {product.narrow(-2, 0, c.heads), product.narrow(-2, c.heads, c.kv_heads),
                     product.narrow(-2, c.heads + c.kv_heads, c.kv_heads)};
    const Tensor angles = c.by_document ? at::rand({c.batch, c.length, c.head_dim / 2}) * 6
                                        : at::rand({c.length, c.head_dim / 2}) * 6;
    const Tensor cos = angles.cos(), sin = angles.sin();
    const auto [q, k, v] = own::rope_heads(kOnThreads, x, cos, sin, style, c.parts);
    const Heads turned = plain::rope_heads(x, cos, sin, style, c.parts);
    CHECK(same_bits(q, turned.q));
    CHECK(same_bits(k, turned.k));
    CHECK(same_bits(v, turned.v));
    CHECK(q.is_contiguous());
    CHECK_FALSE(v.is_alias_of(product));
    const Heads without = own::rope_heads(kOnThreads, {x.q, x.k, {}}, cos, sin, style, c.parts);
    CHECK(same_bits(without.k, turned.k));
    CHECK_FALSE(without.v.defined());

    // Gradients as attention gives them, heads before tokens.
    const auto grad = [&](int64_t heads) {
      return numbers({c.batch, heads, c.length, c.head_dim}, dtype, true).transpose(1, 2);
    };
    const Heads grads = {grad(c.heads), grad(c.kv_heads), part_of_wider(grad(c.kv_heads), 8, 0)};
    const auto [dq, dk, dv] = own::rope_heads_backward(kOnThreads, grads, cos, sin, style, c.parts);
    const Heads back = plain::rope_heads_backward(grads, cos, sin, style, c.parts);
    CHECK(same_bits(dq, back.q));
    CHECK(same_bits(dk, back.k));
    CHECK(same_bits(dv, back.v));
    // views of one tensor, side by side
    CHECK(dq.is_alias_of(dv));
    CHECK(dq.stride(-3) == all * c.head_dim);
    CHECK(dk.storage_offset() == c.heads * c.head_dim);
    CHECK(dv.storage_offset() == (c.heads + c.kv_heads) * c.head_dim);
  }
}

TEST_CASE(
    "the source of the CUDA gated activation follows the plain form within an exponential's last places") {
  at::manual_seed(2);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  const auto activation = GENERATE(Activation::kSilu, Activation::kGeluTanh);
  for (const auto& [rows, n] :
       {std::pair(1, 8), std::pair(3, 17), std::pair(5, 64), std::pair(2, 2056), std::pair(1, 4104)}) {
    CAPTURE(dtype, activation, rows, n);
    const Tensor packed = numbers({rows, 2 * n}, dtype, true), grad = numbers({rows, n}, dtype);
    const Tensor gate = packed.narrow(-1, 0, n), up = packed.narrow(-1, n, n);
    CHECK(close(own::gated_activation(kOnThreads, gate, up, activation),
                plain::gated_activation(gate, up, activation), 2));
    const auto [of_gate, of_up] = own::gated_activation_backward(kOnThreads, grad, gate, up, activation);
    const auto [plain_gate, plain_up] = plain::gated_activation_backward(grad, gate, up, activation);
    CHECK(close(of_gate, plain_gate, 3));
    CHECK(close(of_up, plain_up, 2));
    CHECK(of_gate.is_alias_of(of_up));
    CHECK((of_gate.stride(0) == 2 * n && of_up.storage_offset() == n));
    // halves of one tensor, and two tensors, have the same bits
    CHECK(same_bits(own::gated_activation(kOnThreads, gate, up, activation),
                    own::gated_activation(kOnThreads, gate.contiguous(), up.contiguous(), activation)));
    // addresses that no chunk of 16 bytes has
    const auto shifted = own::gated_activation_backward(kOnThreads, part_of_wider(grad, 1, 0),
                                                        part_of_wider(gate, 3, 2), up, activation);
    CHECK(same_bits(std::get<0>(shifted), of_gate));
    CHECK(same_bits(std::get<1>(shifted), of_up));
  }
}

TEST_CASE("the source of the CUDA sum with its norm follows the plain form and repeats its bits") {
  at::manual_seed(3);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  for (const auto& [rows, n] : {std::pair(1, 8), std::pair(3, 45), std::pair(7, 128), std::pair(2, 1),
                                std::pair(2, 2600), std::pair(530, 8)}) {
    CAPTURE(dtype, rows, n);
    const Tensor x = numbers({rows, n}, dtype), residual = numbers({rows, n}, dtype) * 3,
                 weight = numbers({n}, dtype), grad = numbers({rows, n}, dtype),
                 grad_sum = numbers({rows, n}, dtype);
    const auto [sum, output, rstd] = own::add_rms_norm(kOnThreads, x, residual, weight, 1e-5);
    const kernels::AddRmsNormResult expected = plain::add_rms_norm(x, residual, weight, 1e-5);
    CHECK(same_bits(sum, expected.sum));
    CHECK(close(output, expected.output));
    CHECK(close(rstd, expected.rstd));
    const auto backward = [&] {
      return own::add_rms_norm_backward(kOnThreads, grad, grad_sum, sum, weight, rstd, {});
    };
    const auto [grad_x, grad_weight] = backward();
    const auto [wide_x, wide_weight] =
        plain::add_rms_norm_backward(grad.to(at::kDouble), grad_sum.to(at::kDouble), sum.to(at::kDouble),
                                     weight.to(at::kDouble), rstd.to(at::kDouble), {});
    CHECK(close(grad_x, wide_x.to(dtype)));
    CHECK(at::allclose(grad_weight.to(at::kDouble), wide_weight, dtype == at::kFloat ? 1e-4 : 0.01,
                       dtype == at::kFloat ? 1e-4 : 0.01));
    const auto [again_x, again_weight] = backward();
    CHECK(same_bits(again_x, grad_x));
    CHECK(same_bits(again_weight, grad_weight));
    // a gradient in several terms has the bits of their sum, also in more than the kernel adds up
    const Tensor second = numbers({rows, n}, dtype);
    std::vector<Tensor> more = {second};
    while (more.size() < 4) {
      more.push_back(numbers({rows, n}, dtype));
      const auto in_terms = own::add_rms_norm_backward(kOnThreads, grad, grad_sum, sum, weight, rstd, more);
      const auto in_one = own::add_rms_norm_backward(kOnThreads, kernels::sum_of_terms(grad, more), grad_sum,
                                                     sum, weight, rstd, {});
      CHECK(same_bits(std::get<0>(in_terms), std::get<0>(in_one)));
      CHECK(same_bits(std::get<1>(in_terms), std::get<1>(in_one)));
    }
    const auto in_two = own::add_rms_norm_backward(kOnThreads, grad, grad_sum, sum, weight, rstd, {second});
    CHECK(same_bits(std::get<0>(in_two), std::get<0>(own::add_rms_norm_backward(
                                             kOnThreads, second + grad, grad_sum, sum, weight, rstd, {}))));
  }
}

TEST_CASE("the source of the CUDA norm takes rows that its threads cannot hold") {
  at::manual_seed(4);
  const auto check_backward = [](const Tensor& grad, const Tensor& grad_sum, const Tensor& sum,
                                 const Tensor& weight, const Tensor& rstd, double of_weight) {
    const auto [dx, dw] = own::add_rms_norm_backward(kOnThreads, grad, grad_sum, sum, weight, rstd, {});
    const auto [plain_dx, plain_dw] = plain::add_rms_norm_backward(grad, grad_sum, sum, weight, rstd, {});
    CHECK(at::allclose(dx, plain_dx, 1e-4, 1e-5));
    CHECK(at::allclose(dw, plain_dw, of_weight, of_weight));
  };
  for (const int64_t n : {2 * 1024 + 100 + 1, 2 * 1024 * 4 + 400}) {  // single elements, chunks of four
    const Tensor x = numbers({3, n}, at::kFloat), residual = numbers({3, n}, at::kFloat),
                 weight = numbers({n}, at::kFloat);
    const auto [sum, output, rstd] = own::add_rms_norm(kOnThreads, x, residual, weight, 1e-5);
    CHECK(close(output, plain::add_rms_norm(x, residual, weight, 1e-5).output));
    // more rows than blocks, so that one has two
    const Tensor many_x = numbers({514, 1}, at::kFloat) * sum[0].unsqueeze(0).narrow(1, 0, 40),
                 many_grad = numbers({514, 40}, at::kFloat), part = weight.narrow(0, 0, 40);
    const Tensor many_rstd = plain::rms_norm(many_x, part, 1e-5).rstd;
    check_backward(many_grad, many_x, many_x, part, many_rstd, 1e-3);
    const auto of_terms =
        own::add_rms_norm_backward(kOnThreads, x, residual, sum, weight, rstd, {residual, x});
    CHECK(same_bits(std::get<0>(of_terms),
                    std::get<0>(own::add_rms_norm_backward(kOnThreads, (x + residual) + x, residual, sum,
                                                           weight, rstd, {}))));
    check_backward(x, residual, sum, weight, rstd, 1e-4);
  }
  // Both: a block reads again its part of the weight's gradient that its threads could not hold.
  const int64_t n = 2 * 1024 + 101;
  const Tensor x = numbers({513, 1}, at::kFloat) * numbers({1, n}, at::kFloat),
               grad = numbers({513, n}, at::kFloat), weight = numbers({n}, at::kFloat);
  check_backward(grad, x, x, weight, plain::rms_norm(x, weight, 1e-5).rstd, 1e-3);
}

TEST_CASE("the source of the CUDA norm keeps huge and tiny rows apart and shows a NaN in its own row alone") {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    Tensor x = at::ones({4, 64}, dtype);
    x[0] *= 1e18;
    x[1] *= 1e-18;
    x[2][5] = NAN;
    const Tensor zero = at::zeros_like(x), weight = at::ones({64}, dtype);
    const auto [sum, output, rstd] = own::add_rms_norm(kOnThreads, x, zero, weight, 0);
    CHECK(close(output[0], at::ones({64}, dtype)));
    CHECK(close(output[1], at::ones({64}, dtype)));
    CHECK(output[2].isnan().all().item<bool>());
    CHECK(output[3].eq(1).all().item<bool>());
    const auto [grad_x, grad_weight] = own::add_rms_norm_backward(kOnThreads, x, zero, sum, weight, rstd, {});
    CHECK(grad_x[2].isnan().all().item<bool>());
    CHECK_FALSE(grad_x[3].isnan().any().item<bool>());
    CHECK(grad_weight.isnan().all().item<bool>());  // a sum over the rows
  }
}

namespace {

void check_cross_entropy(int64_t rows, int64_t vocabulary, at::ScalarType dtype, double size,
                         double z_loss = 0) {
  CAPTURE(rows, vocabulary, dtype, size, z_loss);
  const Tensor logits = (at::randn({rows, vocabulary}) * size).to(dtype);
  Tensor labels = at::randint(0, vocabulary, {rows});
  if (rows > 2) labels[1] = kernels::kIgnoredLabel;
  const Tensor scale = at::full({}, 0.125);
  Tensor ours = logits.clone(), others = logits.clone(), wide = logits.to(at::kDouble);
  const Tensor wide_scale = scale.to(at::kDouble);
  const Tensor loss = own::cross_entropy(kOnThreads, ours, labels, &scale, z_loss);
  const Tensor exact = plain::cross_entropy(wide, labels, &wide_scale, z_loss);
  CHECK(at::allclose(loss.to(at::kDouble), exact, 1e-5, 0));
  CHECK(at::allclose(ours.to(at::kDouble), wide, dtype == at::kFloat ? 1e-4 : 1.0 / 256, 1e-7));
  if (rows > 2) CHECK(ours[1].eq(0).all().item<bool>());
  CHECK(same_bits(own::cross_entropy(kOnThreads, others, labels, nullptr, z_loss), loss));
  CHECK(same_bits(others, logits));  // no gradient was asked for
  own::cross_entropy(kOnThreads, others, labels, &scale, z_loss);
  CHECK(same_bits(others, ours));
}

}  // namespace

TEST_CASE("the source of the CUDA cross-entropy follows the plain form in fp64 and repeats its bits") {
  at::manual_seed(5);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  check_cross_entropy(1, 8, dtype, 3);
  check_cross_entropy(4, 1, dtype, 3);
  check_cross_entropy(5, 331, dtype, 5);
  check_cross_entropy(3, 2048, dtype, 40);
  check_cross_entropy(3, 40000, dtype, 1e-3);
  check_cross_entropy(5, 331, dtype, 5, 0.01);
  check_cross_entropy(4, 2048, dtype, 40, 0.001);
}

TEST_CASE("the source of the CUDA cross-entropy keeps infinities and shows what is no number") {
  const float infinity = std::numeric_limits<float>::infinity();
  const Tensor scale = at::ones({});
  Tensor logits = at::zeros({5, 40});
  logits.index_put_({0, at::indexing::Slice(0, 32)}, -infinity);  // all that a thread reads first
  logits[1][3] = NAN;
  logits[2].fill_(-infinity);
  logits[3][7] = infinity;
  const Tensor labels = at::tensor({35, 0, 0, 0, 41}, at::kLong);
  Tensor gradient = logits.clone();
  const auto loss = [&](int64_t row) {
    Tensor one = logits.narrow(0, row, 1).clone();
    return own::cross_entropy(kOnThreads, one, labels.narrow(0, row, 1), nullptr, 0).item<double>();
  };
  CHECK(loss(0) == Approx(std::log(8.0)));
  CHECK(std::isnan(loss(1)));
  CHECK(std::isnan(loss(2)));
  CHECK_FALSE(std::isfinite(loss(3)));
  CHECK(std::isnan(loss(4)));  // its label is outside the vocabulary
  own::cross_entropy(kOnThreads, gradient, labels, &scale, 0);
  CHECK(gradient[0].isfinite().all().item<bool>());
  CHECK(gradient[0][35].item<double>() == Approx(1.0 / 8 - 1));
  for (const int row : {1, 2, 3, 4}) CHECK(gradient[row].isnan().any().item<bool>());
}

TEST_CASE("the source of the CUDA statistics of parts of the vocabulary adds up to whole rows") {
  at::manual_seed(6);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  const Tensor logits = (at::randn({7, 360}) * 4).to(dtype);
  Tensor labels = at::randint(0, 360, {7});
  labels[2] = kernels::kIgnoredLabel;
  const Tensor scale = at::full({}, 0.5);
  const double z_loss = GENERATE(0.0, 0.01);
  Tensor whole = logits.clone();
  own::cross_entropy(kOnThreads, whole, labels, &scale, z_loss);
  const std::vector<std::pair<int64_t, int64_t>> parts = {{0, 160}, {160, 200}, {360, 0}};
  std::vector<Tensor> statistics;
  for (const auto& [first, columns] : parts) {
    const Tensor part = logits.narrow(1, first, columns).contiguous();
    statistics.push_back(own::vocab_statistics(kOnThreads, part, labels, {first, 360}));
    CHECK(close(statistics.back(), plain::vocab_statistics(part, labels, {first, 360})));
  }
  const Tensor all = at::stack(statistics);
  const Tensor lse = (all.select(2, 0) + all.select(2, 1).log()).logsumexp(0);
  for (const auto& [first, columns] : parts) {
    Tensor part = logits.narrow(1, first, columns).contiguous();
    own::vocab_gradient(kOnThreads, part, labels, {first, 360}, lse, scale, z_loss);
    CHECK(close(part, whole.narrow(1, first, columns)));
  }
  const Tensor outside = at::full({1}, 360, at::kLong);
  CHECK(std::isnan(
      own::vocab_statistics(kOnThreads, at::zeros({1, 8}), outside, {0, 360})[0][2].item<double>()));
}

TEST_CASE("the gradients of the CUDA kernels are the derivatives of the plain forms") {
  at::manual_seed(7);
  constexpr double kStep = 1e-6;
  // d sum(grad * f(x)) / dx by central differences, in fp64
  const auto differences = [](const Tensor& x, const std::function<Tensor(const Tensor&)>& f,
                              const Tensor& grad) {
    Tensor result = at::empty_like(x);
    for (int64_t i = 0; i < x.numel(); ++i) {
      const auto moved = [&](double by) {
        Tensor y = x.clone();
        y.view(-1)[i] += by;
        return (f(y) * grad).sum().item<double>();
      };
      result.view(-1)[i] = (moved(kStep) - moved(-kStep)) / (2 * kStep);
    }
    return result;
  };
  const auto wide = [](at::IntArrayRef shape) { return at::randn(shape, at::kDouble); };
  const auto narrow = [](const Tensor& x) { return x.to(at::kFloat); };
  const auto near = [](const Tensor& found, const Tensor& wanted) {
    return at::allclose(found.to(at::kDouble), wanted, 1e-4, 1e-5);
  };
  const Tensor x = wide({3, 12}), y = wide({3, 12}), grad = wide({3, 12}), weight = wide({12});

  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    const auto [of_gate, of_up] =
        own::gated_activation_backward(kOnThreads, narrow(grad), narrow(x), narrow(y), activation);
    CHECK(near(of_gate,
               differences(
                   x, [&](const Tensor& g) { return plain::gated_activation(g, y, activation); }, grad)));
    CHECK(near(of_up,
               differences(
                   y, [&](const Tensor& u) { return plain::gated_activation(x, u, activation); }, grad)));
  }

  const Tensor grad_sum = wide({3, 12});
  const auto [sum, output, rstd] = own::add_rms_norm(kOnThreads, narrow(x), narrow(y), narrow(weight), 1e-5);
  const auto [of_x, of_weight] =
      own::add_rms_norm_backward(kOnThreads, narrow(grad), narrow(grad_sum), sum, narrow(weight), rstd, {});
  const auto norm = [&](const Tensor& a, const Tensor& w) {
    return plain::add_rms_norm(a, y, w, 1e-5).output;
  };
  CHECK(near(of_x, differences(
                       x, [&](const Tensor& a) { return norm(a, weight); }, grad) +
                       grad_sum));
  CHECK(near(of_weight, differences(
                            weight, [&](const Tensor& w) { return norm(x, w); }, grad)));

  const Tensor heads = wide({1, 3, 1, 4}), head_grad = wide({1, 3, 1, 4}), angles = at::rand({3, 2});
  for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalfSplit}) {
    const auto back =
        own::rope_heads_backward(kOnThreads, {narrow(head_grad), narrow(head_grad), narrow(head_grad)},
                                 angles.cos(), angles.sin(), style, 1);
    CHECK(near(
        back.q,
        differences(
            heads, [&](const Tensor& q) { return plain::rope(q, angles.cos(), angles.sin(), style, false); },
            head_grad)));
  }

  Tensor logits = narrow(x);
  const Tensor labels = at::tensor({3, 0, 11}, at::kLong), scale = at::full({}, 2.0);
  own::cross_entropy(kOnThreads, logits, labels, &scale, 0);
  CHECK(near(logits, differences(
                         x, [&](const Tensor& l) { return plain::cross_entropy(l, labels, nullptr, 0); },
                         at::full({}, 2.0, at::kDouble))));
}

TEST_CASE("tensors of sizes that do not fit each other are refused before a launch") {
  const auto fp32 = [](at::IntArrayRef shape) { return at::ones(shape); };
  const auto style = RopeStyle::kInterleaved;
  const Tensor x = fp32({3, 8}), weight = fp32({8}), heads = fp32({1, 4, 2, 8}), angles = fp32({4, 4});
  CHECK_THROWS(own::add_rms_norm(kOnThreads, x, x, fp32({7}), 1e-5));
  CHECK_THROWS(own::add_rms_norm(kOnThreads, fp32({2, 8}), x, weight, 1e-5));
  CHECK_THROWS(own::add_rms_norm_backward(kOnThreads, x, x, x, weight, fp32({2}), {}));
  CHECK_THROWS(own::add_rms_norm(kOnThreads, x, x, weight.to(at::kBFloat16), 1e-5));
  CHECK_THROWS(own::gated_activation(kOnThreads, x, fp32({3, 4}), kSilu));
  CHECK_THROWS(own::gated_activation_backward(kOnThreads, fp32({2, 8}), x, x, kSilu));
  CHECK_THROWS(own::add_rms_norm_backward(kOnThreads, x, x, x, weight, fp32({3}), {fp32({2, 8})}));
  CHECK_THROWS(own::rope_heads(kOnThreads, {heads, heads, fp32({1, 4, 1, 8})}, angles, angles, style, 1));
  CHECK_THROWS(own::rope_heads(kOnThreads, {heads, heads, {}}, fp32({3, 4}), fp32({3, 4}), style, 1));
  Tensor logits = x.clone();
  const Tensor labels = at::zeros({3}, at::kLong), scale = fp32({});
  CHECK_THROWS(own::cross_entropy(kOnThreads, logits, labels.narrow(0, 0, 2), &scale, 0));
  CHECK_THROWS(own::vocab_gradient(kOnThreads, logits, labels, {0, 8}, fp32({2}), scale, 0));
  CHECK_THROWS(own::gated_activation(kOnThreads, x.to(at::kDouble), x.to(at::kDouble), kSilu));
}

TEST_CASE("the CUDA library fills the GPU's column of the table and plain forms can take its place") {
  const auto forms_on_gpu = [](kernels::KernelChoice choice) {
    return kernels::choose_kernels(choice, at::kCUDA);
  };
  const auto& table = kernels::table();
  CHECK(table.rope_heads.is_plain(at::kCUDA));
  REQUIRE(load_device_library() == "");
  const kernels::KernelForms fused = forms_on_gpu(kernels::KernelChoice::kAuto);
  CHECK(fused.libtorchs == std::vector<std::string>{"RMSNorm"});
  CHECK(fused.ours == std::vector<std::string>{"residual sum with RMSNorm", "RoPE", "gated activation",
                                               "latent attention's heads", "chunks of keys",
                                               "parts of attention", "router", "rows of experts",
                                               "cross-entropy"});
  CHECK(fused.plain == std::vector<std::string>{"sum of squares"});
  const auto all = [&](bool plain) {
    for (const bool is : {table.add_rms_norm.is_plain(at::kCUDA),
                          table.add_rms_norm_backward.is_plain(at::kCUDA),
                          table.rope_heads.is_plain(at::kCUDA),
                          table.rope_heads_backward.is_plain(at::kCUDA),
                          table.gated_activation.is_plain(at::kCUDA),
                          table.gated_activation_backward.is_plain(at::kCUDA),
                          table.latent_heads.is_plain(at::kCUDA),
                          table.latent_heads_backward.is_plain(at::kCUDA),
                          table.pack_keys.is_plain(at::kCUDA),
                          table.add_keys.is_plain(at::kCUDA),
                          table.unpack_keys.is_plain(at::kCUDA),
                          table.merge_parts.is_plain(at::kCUDA),
                          table.route_tokens.is_plain(at::kCUDA),
                          table.routing_weights.is_plain(at::kCUDA),
                          table.routing_weights_backward.is_plain(at::kCUDA),
                          table.order_rows.is_plain(at::kCUDA),
                          table.gather_rows.is_plain(at::kCUDA),
                          table.sum_rows.is_plain(at::kCUDA),
                          table.products_of_rows.is_plain(at::kCUDA),
                          table.weight_rows.is_plain(at::kCUDA),
                          table.pack_row_sums.is_plain(at::kCUDA),
                          table.sum_packed_rows.is_plain(at::kCUDA),
                          table.cross_entropy.is_plain(at::kCUDA),
                          table.vocab_statistics.is_plain(at::kCUDA),
                          table.vocab_gradient.is_plain(at::kCUDA),
                          table.rounded_adam.is_plain(at::kCUDA),
                          table.rounded_momentum.is_plain(at::kCUDA)})
      CHECK(is == plain);
  };
  all(false);
  CHECK_FALSE(table.gated_activation.is_plain(at::kCPU));
  const kernels::KernelForms plain = forms_on_gpu(kernels::KernelChoice::kPlain);
  CHECK((plain.ours.empty() && plain.libtorchs.empty() && plain.plain.size() == 11));
  all(true);
  CHECK(table.gated_activation.is_plain(at::kCPU));
  CHECK((table.adam_update == nullptr && table.cpu_matmul == nullptr));
  CHECK(kernels::choose_kernels(kernels::KernelChoice::kAuto).plain.empty());  // a CPU has a form of each
}

}  // namespace hyperion::models
