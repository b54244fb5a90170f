// Attention on a CPU: our kernels against libtorch's, and both against matrix products, which is what a
// step's other half is made of.
//   benchmark_attention [ROUNDS [windows]]
// Prints a Markdown table in GFLOP/s, FLOPs counted as causal attention needs them: 2 * seq^2 * head_dim for
// a head's forward, 2.5 times that for its backward. Times are processor seconds of the whole process, the
// least of ROUNDS interleaved rounds, divided by the threads: other programs on the machine hardly change
// them, and threads that wait for each other count. HYPERION_CPU_INSTRUCTIONS chooses our kernel. With
// `windows` it prints instead what windows cost beside causal attention, and the pairs inside them.
#include "models/kernels/attention/attention.h"

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>

#include "base/error.h"
#include "benchmarks/processor_time.h"
#include "models/kernels/attention/cpu.h"

using namespace hyperion;
using at::Tensor;

namespace {

void benchmark(at::ScalarType dtype, int64_t head_dim, int64_t seq, int64_t kv_heads, int rounds) {
  const int64_t heads = 4;
  const auto random = [&](int64_t count) {
    return at::randn({1, seq, count, head_dim}).to(dtype).transpose(1, 2);
  };
  const Tensor q = random(heads), k = random(kv_heads), v = random(kv_heads), grad = random(heads);
  const Tensor repeated_k = k.repeat_interleave(heads / kv_heads, 1),
               repeated_v = v.repeat_interleave(heads / kv_heads, 1);
  const auto [out, lse] =
      at::_scaled_dot_product_flash_attention_for_cpu(q, repeated_k, repeated_v, 0.0, /*is_causal=*/true);
  const kernels::AttentionResult result = kernels::attention_forward(q, k, v, {});
  constexpr int64_t kSide = 1024;  // of the product that counts as the machine's best
  const Tensor a = at::randn({kSide, kSide}).to(dtype), b = at::randn({kSide, kSide}).to(dtype);
  // What a block of 64 queries and 64 keys needs, as libtorch's products would do it.
  constexpr int64_t kBlock = 64, kTimes = 200;
  const Tensor x = at::randn({kBlock, head_dim}).to(dtype), y = at::randn({head_dim, kBlock}).to(dtype);
  Tensor scores = at::mm(x, y);
  const std::vector<double> seconds = least_seconds(
      {[&] { at::_scaled_dot_product_flash_attention_for_cpu(q, repeated_k, repeated_v, 0.0, true); },
       [&] { kernels::attention_forward(q, k, v, {}); },
       [&, &o = out, &l = lse] {
         at::_scaled_dot_product_flash_attention_for_cpu_backward(grad, q, repeated_k, repeated_v, o, l, 0.0,
                                                                  true);
       },
       [&] { kernels::attention_backward(grad, q, k, v, {}, result); }, [&] { at::mm(a, b); },
       [&] {
         for (int64_t time = 0; time < kTimes; ++time) at::mm_out(scores, x, y);
       }},
      rounds);
  const double forward = 2e-9 * static_cast<double>(heads * seq * seq * head_dim);
  fmt::print("| {} | {} | {} | {}/{} | {} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.1f} |\n",
             dtype == at::kFloat ? "fp32" : "bf16", head_dim, seq, heads, kv_heads, at::get_num_threads(),
             forward / seconds[0], forward / seconds[1], 2.5 * forward / seconds[2],
             2.5 * forward / seconds[3], 2e-9 * static_cast<double>(kSide * kSide * kSide) / seconds[4],
             2e-9 * static_cast<double>(kTimes * kBlock * kBlock * head_dim) / seconds[5]);
  std::fflush(stdout);
}

void benchmark_windows(at::ScalarType dtype, int rounds) {
  const int64_t heads = 8, kv_heads = 1, head_dim = 64, seq = 8192;
  const auto random = [&](int64_t count) {
    return at::randn({1, seq, count, head_dim}).to(dtype).transpose(1, 2);
  };
  const Tensor q = random(heads), k = random(kv_heads), v = random(kv_heads), grad = random(heads);
  double causal_pairs = 0;
  std::vector<double> causal;
  for (const int64_t window : {int64_t{0}, int64_t{64}, int64_t{128}, int64_t{1024}, int64_t{4096}}) {
    kernels::AttentionMask mask;
    mask.window = window;
    const kernels::AttentionResult result = kernels::attention_forward(q, k, v, mask);
    const std::vector<double> seconds =
        least_seconds({[&] { kernels::attention_forward(q, k, v, mask); },
                       [&] { kernels::attention_backward(grad, q, k, v, mask, result); }},
                      rounds);
    const auto keys = static_cast<double>(window > 0 ? window : seq), all = static_cast<double>(seq);
    const double pairs = keys * all - keys * (keys - 1) / 2;
    if (window == 0) {
      causal_pairs = pairs;
      causal = seconds;
    }
    fmt::print("| {} | {} | {:.1f} % | {:.2f} ms, {:.1f} % | {:.2f} ms, {:.1f} % |\n",
               dtype == at::kFloat ? "fp32" : "bf16", window, 100 * pairs / causal_pairs, 1e3 * seconds[0],
               100 * seconds[0] / causal[0], 1e3 * seconds[1], 100 * seconds[1] / causal[1]);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  const bool windows = argc == 3 && std::string_view(argv[2]) == "windows";
  if (argc > (windows ? 3 : 2) || rounds < 1) {
    std::fprintf(stderr, "usage: benchmark_attention [ROUNDS [windows]]\n");
    return 2;
  }
  const at::NoGradGuard no_gradients;
  if (windows) {
    at::set_num_threads(1);
    fmt::print("| | window of 8192 tokens | pairs | forward | backward |\n|---|---:|---:|---:|---:|\n");
    for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) benchmark_windows(dtype, rounds);
    return 0;
  }
  fmt::print("instructions: {}\n\n", kernels::cpu::text_of(kernels::cpu::chosen_instructions()));
  fmt::print(
      "| | head size | tokens | heads | threads | forward: libtorch | ours | backward: libtorch | ours | "
      "product of "
      "1024^3 | of a block |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n");
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
      for (const int64_t head_dim : {16, 64, 128})
        for (const int64_t seq : {256, 1024, 4096})
          for (const int64_t kv_heads : {4, 1})
            if (kv_heads == 4 || seq == 1024) benchmark(dtype, head_dim, seq, kv_heads, rounds);
  }
  return 0;
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.code());
}
