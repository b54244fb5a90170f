// This program measures what a GPU reaches in the operations of a training of llama3 8B and in those of
// experts. It checks the numbers of an operation where it could be wrong:
//   benchmark_gpu [--small] ceilings | attention | block | operations | float8 | experts
// Prints a JSON object per line; one with "wrong" says what is wrong, and the exit code is then 1. --small:
// sizes for a rehearsal on a simulated GPU. Without a GPU: exit code 77.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string_view>

#include <fmt/format.h>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_chunk_cat.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "base/error.h"
#include "benchmarks/gpu.h"
#include "models/flavors/registry.h"
#include "models/float8/cast.h"
#include "models/float8/scaled_matmul.h"
#include "models/kernels/attention/attention.h"
#include "models/kernels/kernels.h"
#include "models/transformer.h"

using namespace hyperion;
using at::Tensor;

namespace {

constexpr int64_t kWorlds[] = {8, 64, 256, 1024};

float8::Quantized transposed(const float8::Quantized& x) {
  return {x.values.t(), x.scale.t(), x.inverse.defined() ? x.inverse.t() : x.inverse};
}

// --- ceilings ----------------------------------------------------------------------------------------------

struct Product {
  const char* name;
  int64_t m, k, n;
};

std::vector<Product> products() {
  const int64_t tokens = size(8192, 64), by = size(1, 64);
  return {{"8192 x 8192 x 8192", size(8192, 128), size(8192, 128), size(8192, 128)},
          {"wq, wo", tokens, 4096 / by, 4096 / by},
          {"wk, wv", tokens, 4096 / by, 1024 / by},
          {"w1, w3", tokens, 4096 / by, 14336 / by},
          {"w2", tokens, 14336 / by, 4096 / by}};
}

// What a product reaches for ten seconds on end, in which the card's clocks settle below its power limit: the
// median of the second half.
void print_sustained(const std::string& name, double operations, const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  const int times = small ? 1 : 20;
  std::vector<double> each;
  for (const auto begin = Clock::now(); Seconds(Clock::now() - begin).count() < (small ? 0.1 : 10.0);) {
    const auto start = Clock::now();
    for (int i = 0; i < times; ++i) work();
    DeviceStream::current(at::kCUDA).synchronize();
    each.push_back(Seconds(Clock::now() - start).count() / times);
  }
  each.erase(each.begin(), each.begin() + std::ssize(each) / 2);
  const auto middle = each.begin() + std::ssize(each) / 2;
  std::nth_element(each.begin(), middle, each.end());
  print_row(name, fmt::format(", \"ms\": {:.4f}, \"tflops\": {:.1f}, \"sustained\": true", 1e3 * *middle,
                              operations / *middle / 1e12));
}

void ceilings(const BenchmarkDevice& place) {
  const std::vector<Product> all = products();
  for (const Product& product : all) {
    const Tensor a = random({product.m, product.k}), b = random({product.n, product.k});
    Works works = {[&] { at::mm(a, b.t()); }};
    std::vector<std::string> names = {"bf16"};
    if (place.compute_capability >= 89)
      for (const auto granularity : {float8::Granularity::kTensor, float8::Granularity::kRow}) {
        const float8::Quantized rows = float8::quantize(a, {.granularity = granularity});
        float8::Quantized columns = float8::quantize(b, {.granularity = granularity});
        columns = transposed(columns);
        for (const bool fast : {true, false}) {  // forward; gradients
          works.emplace_back([rows, columns, fast] {
            float8::scaled_matmul(rows, columns, at::kBFloat16, fast, float8::Gemm::kNative);
          });
          names.push_back(fmt::format("FP8 {}{}",
                                      granularity == float8::Granularity::kTensor ? "tensorwise" : "rowwise",
                                      fast ? "" : ", slow accumulation"));
        }
      }
    const std::vector<double> seconds = medians(works, 5);
    const double operations = 2.0 * static_cast<double>(product.m * product.k * product.n);
    for (size_t i = 0; i < works.size(); ++i)
      print_row(fmt::format("{}, {}", product.name, names[i]),
                fmt::format(", \"ms\": {:.4f}, \"tflops\": {:.1f}", 1e3 * seconds[i],
                            operations / seconds[i] / 1e12));
    if (&product != &all.front()) continue;
    for (size_t i = 0; i < std::min<size_t>(2, works.size()); ++i)  // bf16 and FP8 tensorwise
      print_sustained(fmt::format("{}, {}, on end", product.name, names[i]), operations, works[i]);
  }
  const int64_t bytes = size(int64_t{2} << 30, 1 << 16), host_bytes = size(256 << 20, 1 << 16);
  const auto buffer = [](int64_t count) {
    return at::zeros({count}, at::TensorOptions(at::kByte).device(at::kCUDA));
  };
  Tensor from = buffer(bytes), to = buffer(bytes), on_device = buffer(host_bytes);
  Tensor on_host = at::zeros({host_bytes}, at::kByte).pin_memory();
  const auto print_copy = [](const char* name, double moved, double seconds) {
    print_row(name,
              fmt::format(", \"ms\": {:.4f}, \"gb_per_s\": {:.1f}", 1e3 * seconds, moved / seconds / 1e9));
  };
  print_copy("copy on the device, bytes read and written", 2.0 * static_cast<double>(bytes),
             seconds_of([&] { to.copy_(from); }));
  print_copy("copy to the device from pinned memory", static_cast<double>(host_bytes),
             seconds_of([&] { on_device.copy_(on_host, true); }));
  print_copy("copy from the device to pinned memory", static_cast<double>(host_bytes),
             seconds_of([&] { on_host.copy_(on_device, true); }));
}

// --- attention ---------------------------------------------------------------------------------------------

// Causal attention of the last `rows` queries, in fp32.
Tensor last_rows_of_attention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t rows) {
  const int64_t seq = q.size(2), repeated = q.size(1) / k.size(1);
  const Tensor queries = q.narrow(2, seq - rows, rows).to(at::kFloat);
  const Tensor keys = k.to(at::kFloat).repeat_interleave(repeated, 1);
  Tensor scores = at::matmul(queries, keys.transpose(2, 3)) / std::sqrt(static_cast<double>(q.size(3)));
  const Tensor hidden = at::ones({rows, seq}, q.options().dtype(at::kBool)).triu(seq - rows + 1);
  scores.masked_fill_(hidden, -INFINITY);
  return at::matmul(at::softmax(scores, -1), v.to(at::kFloat).repeat_interleave(repeated, 1));
}

// The kernel of the product, then flash, which it takes where deterministic algorithms are asked for.
void attention(const BenchmarkDevice&) {
  const int64_t heads = size(32, 4), kv_heads = size(8, 2), seq = size(8192, 64), head_dim = 128;
  const Tensor q = random({1, heads, seq, head_dim}), k = random({1, kv_heads, seq, head_dim}),
               v = random({1, kv_heads, seq, head_dim}), grad = random({1, heads, seq, head_dim});
  const int64_t rows = size(256, 16);
  const Tensor reference = last_rows_of_attention(q, k, v, rows);
  const double operations =
      2.0 * static_cast<double>(heads) * static_cast<double>(seq * seq) * static_cast<double>(head_dim);
  for (const bool deterministic : {false, true}) {
    at::globalContext().setDeterministicAlgorithms(deterministic, /*warn_only=*/true);
    const bool cudnn = kernels::attention_kernel({q.scalar_type(), head_dim, head_dim, seq, seq},
                                                 q.device()) == kernels::AttentionKernel::kCudnn;
    const char* name = cudnn ? "attention, cuDNN" : "attention, flash";
    const auto begin = std::chrono::steady_clock::now();
    kernels::AttentionResult result = kernels::attention_forward(q, k, v, {});
    kernels::AttentionGradients gradients = kernels::attention_backward(grad, q, k, v, {}, result);
    DeviceStream::current(at::kCUDA).synchronize();
    const std::chrono::duration<double> first = std::chrono::steady_clock::now() - begin;
    const double error = relative_error(result.output.narrow(2, seq - rows, rows), reference);
    std::string wrong = error_over(error, kBf16Error);
    for (int repetition = 0; repetition < (small ? 2 : 20) && wrong.empty(); ++repetition) {
      result = kernels::attention_forward(q, k, v, {});
      gradients = kernels::attention_backward(grad, q, k, v, {}, result);
      for (const Tensor& tensor : {result.output, gradients.q, gradients.k, gradients.v})
        if (!at::isfinite(tensor).all().item<bool>()) wrong = "a result is not finite";
    }
    const double forward = seconds_of([&] { kernels::attention_forward(q, k, v, {}); });
    const double backward = seconds_of([&] { kernels::attention_backward(grad, q, k, v, {}, result); });
    print_row(name,
              fmt::format(", \"first_call_ms\": {:.1f}, \"forward_ms\": {:.4f}, \"backward_ms\": {:.4f}, "
                          "\"forward_tflops\": {:.1f}, \"backward_tflops\": {:.1f}, \"error\": {:.3g}",
                          1e3 * first.count(), 1e3 * forward, 1e3 * backward, operations / forward / 1e12,
                          2.5 * operations / backward / 1e12, error),
              wrong);
  }
  at::globalContext().setDeterministicAlgorithms(false, false);
}

// --- one block ---------------------------------------------------------------------------------------------

models::ModelArgs block_args() {
  models::ModelArgs args = models::model_args("llama3", "8B");
  if (small) {
    args.dim = 128;
    args.attention.n_heads = 4;
    args.attention.n_kv_heads = 2;
    args.attention.head_dim = 32;
    args.dense.hidden_dim = 256;
  }
  return args;
}

struct BlockResult {
  std::vector<std::string> names;
  std::vector<Tensor> tensors;  // the output, and the gradients of the input and of each weight
};

BlockResult run_block(const models::TransformerBlock& block, const std::vector<Tensor>& weights,
                      const Tensor& x, const Tensor& grad, const models::SequenceContext& context,
                      at::ScalarType dtype) {
  const std::vector<ParameterPtr> parameters = block.parameters();
  for (size_t i = 0; i < parameters.size(); ++i)
    parameters[i]->weight = weights[i].to(dtype).detach().requires_grad_();
  const Tensor input = x.to(dtype).detach().requires_grad_();
  const Tensor output = block.forward(input, context);
  output.backward(grad.to(dtype));
  BlockResult result{{"output", "gradient of the input"}, {output.detach(), input.grad()}};
  for (const ParameterPtr& parameter : parameters) {
    result.names.push_back("gradient of " + parameter->fqn);
    result.tensors.push_back(parameter->weight.grad());
    parameter->weight.reset();
  }
  return result;
}

// In bf16, as a training computes, against fp32 from the same bf16 numbers.
void block(const BenchmarkDevice&) {
  const models::ModelArgs args = block_args();
  const models::TransformerBlock transformer_block(args, 0);
  const int64_t tokens = size(2048, 32);
  std::vector<Tensor> weights;
  for (const ParameterPtr& parameter : transformer_block.parameters())
    weights.push_back(
        parameter->shape.size() == 1
            ? random(parameter->shape).mul_(0.1).add_(1)
            : random(parameter->shape).mul_(1 / std::sqrt(static_cast<double>(parameter->shape[1]))));
  const Tensor x = random({1, tokens, args.dim}), grad = random({1, tokens, args.dim});
  const models::SequenceContext context = models::Transformer(args).context(tokens, at::kCUDA);
  const BlockResult wide = run_block(transformer_block, weights, x, grad, context, at::kFloat);
  const BlockResult narrow = run_block(transformer_block, weights, x, grad, context, at::kBFloat16);
  for (size_t i = 0; i < wide.names.size(); ++i) {
    const double error = relative_error(narrow.tensors[i], wide.tensors[i]);
    print_row(wide.names[i], fmt::format(", \"error\": {:.3g}", error), error_over(error, kBf16Error));
  }
}

// --- operations --------------------------------------------------------------------------------------------

// The gradients of a block of 8B, and where rank r of `world` finds its rows of all.
void pack_rows(int64_t world, double copy_bytes_per_second) {
  std::vector<Tensor> grads;
  int64_t columns = 0, numel = 0;
  for (const ParameterPtr& parameter : models::TransformerBlock(block_args(), 0).parameters()) {
    grads.push_back(random(parameter->shape));
    columns += (parameter->rows() + world - 1) / world * parameter->row_numel();
    numel += parameter->numel();
  }
  Tensor packed = at::empty({world, columns}, at::TensorOptions(at::kFloat).device(at::kCUDA));
  const double seconds = seconds_of([&] { at::_chunk_cat_out(packed, grads, 0, world); });
  std::string wrong;
  const Tensor rows = grads[0].chunk(world, 0)[0].reshape(-1).to(at::kFloat);
  if (!at::equal(packed[0].narrow(0, 0, rows.numel()), rows)) wrong = "rank 0's rows are not its chunk";
  const double bytes = static_cast<double>(2 * numel + 4 * packed.numel());
  print_row(fmt::format("pack of a block's gradients, {} ranks", world),
            fmt::format(", \"us\": {:.1f}, \"gb_per_s\": {:.1f}, \"of_copy\": {:.3f}", 1e6 * seconds,
                        bytes / seconds / 1e9, bytes / seconds / copy_bytes_per_second),
            wrong);
}

// A kernel of a model's layers in its plain and its fused form: each input read once, each output written
// once, makes `bytes`.
struct LayerKernel {
  const char* name;
  double bytes;
  std::function<std::vector<Tensor>()> plain, fused;  // the results
};

double bf16_bytes(int64_t numel) {
  return 2.0 * static_cast<double>(numel);
}

void time_in_both_forms(const LayerKernel& kernel, double copy_bytes_per_second) {
  std::string wrong;
  const std::vector<Tensor> wanted = kernel.plain(), found = kernel.fused();
  for (size_t i = 0; i < wanted.size() && wrong.empty(); ++i)
    wrong = error_over(relative_error(found[i], wanted[i]), kBf16Error);
  const std::vector<double> seconds = medians({[&] { kernel.plain(); }, [&] { kernel.fused(); }}, 10);
  for (const bool fused : {false, true}) {
    const double own = seconds[fused ? 1 : 0], rate = kernel.bytes / own;
    print_row(fmt::format("{}, {}", kernel.name, fused ? "fused" : "plain"),
              fmt::format(", \"us\": {:.1f}, \"gb_per_s\": {:.1f}, \"of_copy\": {:.3f}", 1e6 * own,
                          rate / 1e9, rate / copy_bytes_per_second),
              fused ? wrong : "");
  }
}

// Of llama3 8B; queries, keys and values, and gate and up, as parts of one product.
void layer_kernels(double copy_bytes_per_second) {
  using kernels::Heads;
  namespace plain = kernels::plain;
  const int64_t tokens = size(8192, 32), dim = size(4096, 128), hidden = size(14336, 256),
                heads = size(32, 4), kv_heads = size(8, 2), head_dim = 128, vocabulary = size(128256, 512),
                rows = size(1024, 32);
  const auto pair = [](const std::pair<Tensor, Tensor>& two) { return std::vector{two.first, two.second}; };
  const auto all = [](const Heads& x) { return std::vector{x.q, x.k, x.v}; };

  const Tensor x = random({tokens, dim}), residual = random({tokens, dim}), grad = random({tokens, dim}),
               grad_sum = random({tokens, dim}), weight = random({dim});
  const Tensor rstd = plain::rms_norm(x, weight, 1e-5).rstd;
  const auto norm = [](const kernels::RmsNormResult& of) { return std::vector{of.output, of.rstd}; };
  const auto added = [](const kernels::AddRmsNormResult& of) {
    return std::vector{of.sum, of.output, of.rstd};
  };

  const Tensor qkv = random({1, tokens, heads + 2 * kv_heads, head_dim});
  const Heads parts = {qkv.narrow(2, 0, heads), qkv.narrow(2, heads, kv_heads),
                       qkv.narrow(2, heads + kv_heads, kv_heads)};
  const Heads head_grads = {random(parts.q.sizes()), random(parts.k.sizes()), random(parts.v.sizes())};
  const Tensor angles = random({tokens, head_dim / 2}, at::kFloat), cos = angles.cos(), sin = angles.sin();
  const auto style = models::RopeStyle::kInterleaved;

  const Tensor gate_up = random({tokens, 2 * hidden}), out_grad = random({tokens, hidden}),
               gate = gate_up.narrow(1, 0, hidden), up = gate_up.narrow(1, hidden, hidden);

  const Tensor scale = at::ones({}, cos.options()), first = random({rows, vocabulary}), other = first.clone();
  const Tensor labels = at::randint(vocabulary, {rows}, at::TensorOptions(at::kLong).device(at::kCUDA));

  const double row = bf16_bytes(x.numel()), wide = bf16_bytes(gate.numel()),
               all_heads = bf16_bytes(qkv.numel()), logit_bytes = bf16_bytes(first.numel());
  const LayerKernel every[] = {
      {"RMSNorm forward", 2 * row, [&] { return norm(plain::rms_norm(x, weight, 1e-5)); },
       [&] { return norm(kernels::table().rms_norm(x, weight, 1e-5)); }},
      {"RMSNorm backward", 3 * row, [&] { return pair(plain::rms_norm_backward(grad, x, weight, rstd)); },
       [&] { return pair(kernels::table().rms_norm_backward(grad, x, weight, rstd)); }},
      {"residual sum with RMSNorm forward", 4 * row,
       [&] { return added(plain::add_rms_norm(x, residual, weight, 1e-5)); },
       [&] { return added(kernels::table().add_rms_norm(x, residual, weight, 1e-5)); }},
      {"residual sum with RMSNorm backward", 4 * row,
       [&] { return pair(plain::add_rms_norm_backward(grad, grad_sum, x, weight, rstd, {})); },
       [&] { return pair(kernels::table().add_rms_norm_backward(grad, grad_sum, x, weight, rstd, {})); }},
      {"RoPE of queries and keys", 2 * all_heads,
       [&] { return all(plain::rope_heads(parts, cos, sin, style, /*parts=*/1)); },
       [&] { return all(kernels::table().rope_heads(parts, cos, sin, style, /*parts=*/1)); }},
      {"RoPE backward, packed", 2 * all_heads,
       [&] {
         const Heads of = plain::rope_heads_backward(head_grads, cos, sin, style, /*parts=*/1);
         return std::vector{at::cat({of.q, of.k, of.v}, 2)};
       },
       [&] {
         const Heads of = kernels::table().rope_heads_backward(head_grads, cos, sin, style, /*parts=*/1);
         return std::vector{of.q.as_strided(qkv.sizes(), qkv.strides())};
       }},
      {"SwiGLU forward", 3 * wide,
       [&] { return std::vector{plain::gated_activation(gate, up, models::Activation::kSilu)}; },
       [&] { return std::vector{kernels::table().gated_activation(gate, up, models::Activation::kSilu)}; }},
      {"SwiGLU backward, packed", 5 * wide,
       [&] {
         const auto [of_gate, of_up] =
             plain::gated_activation_backward(out_grad, gate, up, models::Activation::kSilu);
         return std::vector{at::cat({of_gate, of_up}, 1)};
       },
       [&] {
         const auto [of_gate, of_up] =
             kernels::table().gated_activation_backward(out_grad, gate, up, models::Activation::kSilu);
         return std::vector{of_gate.as_strided(gate_up.sizes(), gate_up.strides())};
       }},
      {"cross-entropy and its gradient", 2 * logit_bytes,
       [&] {
         return std::vector{plain::cross_entropy(first, labels, &scale, 0), first};
       },
       [&] {
         return std::vector{kernels::table().cross_entropy(other, labels, &scale, 0), other};
       }}};
  for (const LayerKernel& kernel : every) time_in_both_forms(kernel, copy_bytes_per_second);
}

void operations(const BenchmarkDevice&) {
  const int64_t count = size(100'000'000, 4096);
  const auto fp32 = [](at::IntArrayRef shape) { return random(shape, at::kFloat); };
  const Tensor wide = random({size(8192, 32), size(14336, 256)}),
               scale = at::ones({}, at::TensorOptions(at::kCUDA));
  const std::vector<Tensor> one = {fp32({count})}, other = {fp32({count})}, moment = {at::zeros_like(one[0])},
                            square = {at::zeros_like(one[0])};
  std::vector<Tensor> steps = {at::ones({}, at::TensorOptions(at::kCUDA))};
  Tensor copied = at::empty_like(wide);
  const Tensor shard = random({size(218'112'000, 4096) / 8});
  Tensor gathered = at::empty({8, shard.numel()}, shard.options());

  struct Operation {
    const char* name;
    double bytes;  // each input read once, each output written once
    std::function<void()> work;
  };
  const double numbers = 4.0 * static_cast<double>(count);
  const Operation all[] = {{"copy", 2 * bf16_bytes(wide.numel()), [&] { copied.copy_(wide); }},
                           {"AdamW, fused", 7 * numbers,
                            [&] {
                              at::_fused_adamw_(one, other, moment, square, {}, steps, 1e-4, 0.9, 0.95, 0.1,
                                                1e-8,
                                                /*amsgrad=*/false,
                                                /*maximize=*/false);
                            }},
                           {"norm of gradients", numbers, [&] { at::_foreach_norm(other, 2); }},
                           {"scaling of gradients", 2 * numbers, [&] { at::_foreach_mul_(other, scale); }},
                           {"FP8 cast, both layouts", 2 * bf16_bytes(wide.numel()),
                            [&] { float8::cast(wide, scale, scale, float8::kE4m3); }},
                           {"gather of a dry run, 8 ranks", bf16_bytes(9 * shard.numel()), [&] {
                              gathered.copy_(shard.view({1, -1}).expand({8, -1}));
                            }}};
  double copy = 0;
  for (const Operation& operation : all) {
    const double seconds = seconds_of(operation.work, 10), rate = operation.bytes / seconds;
    if (copy == 0) copy = rate;
    print_row(operation.name, fmt::format(", \"us\": {:.1f}, \"gb_per_s\": {:.1f}, \"of_copy\": {:.3f}",
                                          1e6 * seconds, rate / 1e9, rate / copy));
  }
  layer_kernels(copy);
  for (const int64_t world : kWorlds) pack_rows(world, copy);
}

// --- FP8 ---------------------------------------------------------------------------------------------------

// What libtorch takes and refuses is data: of forward products, and of those of the backward, whose sums are
// fp32. A product that it takes has to be near its emulation.
void float8_shapes(const BenchmarkDevice& place) {
  if (place.compute_capability < 89) return print_row("FP8", ", \"accepted\": false");
  for (const auto granularity : {float8::Granularity::kTensor, float8::Granularity::kRow})
    for (const bool backward : {false, true})
      for (const int64_t rows : {int64_t{1}, int64_t{16}, int64_t{17}, int64_t{33}, size(8192, 64)}) {
        const float8::Quantized a = float8::quantize(random({rows, 256}), {.granularity = granularity});
        float8::Quantized b = float8::quantize(random({128, 256}), {.granularity = granularity});
        b = transposed(b);
        const auto product = [&](float8::Gemm gemm) {
          return float8::scaled_matmul(a, b, at::kBFloat16, /*fast_accumulate=*/!backward, gemm);
        };
        const std::string name = fmt::format(
            "FP8 {}{}, {} rows", granularity == float8::Granularity::kTensor ? "tensorwise" : "rowwise",
            backward ? " backward" : "", rows);
        try {
          const double error =
              relative_error(product(float8::Gemm::kNative), product(float8::Gemm::kEmulated));
          print_row(name, fmt::format(", \"accepted\": true, \"error\": {:.3g}", error),
                    error_over(error, kBf16Error));
        } catch (const c10::Error& error) {
          print_row(name, ", \"accepted\": false");
          fmt::print(stderr, "{}: {}\n", name, error.what_without_backtrace());
        }
      }
}

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string_view> words(argv + 1, argv + argc);
  small = std::ranges::find(words, "--small") != words.end();
  struct Part {
    std::string_view name;
    void (*run)(const BenchmarkDevice&);
    bool gradients = false;
  };
  constexpr Part kParts[] = {{"ceilings", ceilings},     {"attention", attention},  {"block", block, true},
                             {"operations", operations}, {"float8", float8_shapes}, {"experts", experts}};
  const auto part = std::ranges::find(kParts, words.empty() ? "" : words.back(), &Part::name);
  if (part == std::end(kParts) || std::ssize(words) != 1 + (small ? 1 : 0)) {
    std::fprintf(
        stderr,
        "usage: benchmark_gpu [--small] ceilings | attention | block | operations | float8 | experts\n");
    return 2;
  }
  const BenchmarkDevice place = choose_benchmark_device();
  if (place.device.is_cpu()) {
    fmt::print("skipped: there is no GPU\n");
    return 77;
  }
  const at::AutoGradMode gradients(part->gradients);
  part->run(place);
  return found_wrong ? 1 : 0;
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.code());
} catch (const c10::Error& error) {
  std::fprintf(stderr, "%s\n", error.what_without_backtrace());
  return 1;
}
