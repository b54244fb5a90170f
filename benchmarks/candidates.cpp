// What changes that are not made would gain on this GPU: each as it is now and as it would be, with the
// numbers of both compared (docs/notes/candidates.md has the list):
//   benchmark_candidates [--small]
// Prints a JSON object per line; one with "wrong" says what is wrong, and the exit code is then 1. --small:
// sizes for a rehearsal on a simulated GPU. Without a GPU: exit code 77.
#include <cstdio>
#include <string_view>

#include <fmt/format.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_chunk_cat.h>
#include <ATen/ops/_cudnn_attention_forward.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "base/error.h"
#include "benchmarks/device_timing.h"
#include "models/kernels/attention/attention.h"

using namespace hyperion;
using at::Tensor;

namespace {

constexpr double kBf16Error = 0.02;  // as benchmark_gpu's

bool small = false;
bool found_wrong = false;

int64_t size(int64_t full, int64_t rehearsed) {
  return small ? rehearsed : full;
}

at::TensorOptions on_gpu(at::ScalarType dtype) {
  return at::TensorOptions(at::kCUDA).dtype(dtype);
}

Tensor random(at::IntArrayRef shape, at::ScalarType dtype = at::kBFloat16) {
  return at::randn(shape, at::TensorOptions(at::kCUDA)).to(dtype);
}

struct Candidate {
  const char* name;
  double calls;  // of a step of 8B with 8192 tokens as rank 0 of 8; of async TP: of 70B on 8 ranks
  std::function<void()> now, then;
  double scale = 1;  // of `then`: bytes of the change per byte that it moves here
  std::string wrong;
};

void print_candidate(const Candidate& candidate) {
  const std::vector<double> seconds =
      interleaved_medians({candidate.now, candidate.then}, at::kCUDA, small ? 1 : 9, small ? 1 : 5);
  const double then = seconds[1] * candidate.scale, saved = seconds[0] - then;
  fmt::print(
      "{{\"name\": \"{}\", \"now_us\": {:.1f}, \"then_us\": {:.1f}, \"saved_ms_per_step\": {:.3f}{}}}\n",
      candidate.name, 1e6 * seconds[0], 1e6 * then, 1e3 * saved * candidate.calls,
      candidate.wrong.empty() ? "" : fmt::format(", \"wrong\": \"{}\"", candidate.wrong));
  std::fflush(stdout);
  found_wrong = found_wrong || !candidate.wrong.empty();
}

// "" where they are near; NaN never is.
std::string compare(const Tensor& found, const Tensor& reference) {
  const Tensor wanted = reference.to(at::kFloat);
  const double error = ((found.to(at::kFloat) - wanted).norm() / wanted.norm()).item<double>();
  return error <= kBf16Error ? ""
                             : fmt::format("relative error {:.3g}, at most {} expected", error, kBf16Error);
}

// The gradient of the embedding as a dense table that is packed for the reduce-scatter, and as the rows of
// the tokens alone, in fp32. What the links gain (134 MB instead of 2.1 GB) needs several GPUs.
void embedding_rows() {
  constexpr int64_t kRanks = 8;
  const int64_t vocabulary = size(128256, 512), dim = size(4096, 64), tokens = size(8192, 64);
  const Tensor ids = at::randint(vocabulary, {tokens}, at::kLong), grad = random({tokens, dim});
  const auto [distinct, slots, counts] = at::_unique2(ids, /*sorted=*/true, /*return_inverse=*/true);
  const Tensor on_device = ids.to(at::kCUDA), slot = slots.to(at::kCUDA), touched = distinct.to(at::kCUDA);
  Tensor packed = at::empty({kRanks, vocabulary / kRanks * dim}, on_gpu(at::kFloat));
  const auto dense = [&] {
    const Tensor table = at::embedding_dense_backward(grad, on_device, vocabulary, /*padding_idx=*/-1,
                                                      /*scale_grad_by_freq=*/false);
    at::_chunk_cat_out(packed, {table}, 0, kRanks);
  };
  const auto rows = [&] {
    return at::zeros({touched.numel(), dim}, on_gpu(at::kFloat)).index_add_(0, slot, grad.to(at::kFloat));
  };
  dense();
  print_candidate({"embedding's gradient by rows", 1, dense, rows, 1,
                   compare(packed.view({vocabulary, dim}).index_select(0, touched), rows())});
}

// Adam writes unscaled gradients back and a second kernel copies its weights: a kernel that does neither
// moves 30 bytes of a parameter, for which the time of the plain one's 28 is taken.
void adam_in_one_pass() {
  const int64_t count = size(100'000'000, 4096);
  const auto fp32 = [&] { return std::vector{random({count}, at::kFloat)}; };
  std::vector<Tensor> weights = fp32(), grads = fp32(), moments = {at::zeros_like(weights[0])},
                      squares = {at::zeros_like(weights[0])}, copies = {weights[0].to(at::kBFloat16)};
  std::vector<Tensor> steps = {at::ones({}, on_gpu(at::kFloat))};
  const auto update = [&](const std::optional<Tensor>& divisor) {
    at::_fused_adamw_(weights, grads, moments, squares, {}, steps, 1e-4, 0.9, 0.95, 0.1, 1e-8,
                      /*amsgrad=*/false, /*maximize=*/false, divisor);
  };
  const Tensor divisor = at::ones({}, on_gpu(at::kFloat));
  print_candidate({"Adam without gradients written back, with bf16 copies", 8.03e9 / 8 / 1e8,
                   [&] {
                     update(divisor);
                     at::_foreach_copy_(copies, weights);
                   },
                   [&] { update(std::nullopt); }, 30.0 / 28.0, ""});
}

// The residual sum behind w2 as the third operand of the product.
void residual_in_product() {
  const int64_t tokens = size(8192, 32), hidden = size(14336, 64), dim = size(4096, 32);
  const Tensor x = random({tokens, hidden}), weight = random({dim, hidden}), residual = random({tokens, dim});
  const auto sum = [&] { return at::mm(x, weight.t()).add_(residual); };
  const auto product = [&] { return at::addmm(residual, x, weight.t()); };
  print_candidate({"residual sum in the product", 32, sum, product, 1, compare(product(), sum())});
}

// A piece of an async tensor parallel product, copied into its slot or written there.
void product_in_slot() {
  const int64_t tokens = size(1024, 16), dim = size(8192, 32), width = size(7168, 32);
  constexpr double kLayers = 80, kPieces = 8, kProducts = 4;  // two forward and two backward
  const Tensor x = random({tokens, dim}), weight = random({width, dim});
  Tensor slots = at::empty({2, tokens, width}, x.options());
  Tensor copied = slots[0], written = slots[1];
  const auto copy = [&] { copied.copy_(at::mm(x, weight.t())); };
  const auto write = [&] { at::mm_out(written, x, weight.t()); };
  copy();
  write();
  print_candidate({"product written into its slot, async TP", kLayers * kPieces * kProducts, copy, write, 1,
                   compare(written, copied)});
}

// Documents by flash attention 2 and by cuDNN with their lengths; forward alone.
void lengths_by_cudnn() {
  const int64_t tokens = size(8192, 64), heads = size(32, 4), kv_heads = size(8, 2), head_dim = 128;
  const int64_t longest = tokens / 4;
  const Tensor q = random({1, heads, tokens, head_dim}), k = random({1, kv_heads, tokens, head_dim}),
               v = random({1, kv_heads, tokens, head_dim});
  const Tensor bounds = at::arange(0, tokens + 1, longest, at::kInt).to(at::kCUDA);
  const kernels::AttentionMask documents = {.kind = kernels::MaskKind::kDocuments,
                                            .query_bounds = bounds,
                                            .key_bounds = bounds,
                                            .max_queries = longest,
                                            .max_keys = longest};
  const auto by_token = [](const Tensor& x) { return x[0].transpose(0, 1).contiguous(); };
  const Tensor flat_q = by_token(q), flat_k = by_token(k), flat_v = by_token(v);
  const auto flash = [&] { return kernels::attention_forward(q, k, v, documents).output; };
  const auto cudnn = [&] {
    return std::get<0>(at::_cudnn_attention_forward(flat_q, flat_k, flat_v, {}, bounds, bounds, longest,
                                                    longest,
                                                    /*compute_log_sumexp=*/true, 0.0, /*is_causal=*/true));
  };
  constexpr const char* kName = "lengths by cuDNN, forward";
  try {
    print_candidate({kName, 32, flash, cudnn, 1, compare(cudnn(), by_token(flash()))});
  } catch (const c10::Error& error) {  // what this cuDNN takes is what is asked
    fmt::print("{{\"name\": \"{}\", \"accepted\": false}}\n", kName);
    fmt::print(stderr, "{}: {}\n", kName, error.what_without_backtrace());
  }
}

}  // namespace

int main(int argc, char** argv) try {
  small = argc == 2 && std::string_view(argv[1]) == "--small";
  if (argc > 1 && !small) {
    std::fprintf(stderr, "usage: benchmark_candidates [--small]\n");
    return 2;
  }
  if (choose_benchmark_device().device.is_cpu()) {
    fmt::print("skipped: there is no GPU\n");
    return 77;
  }
  const at::AutoGradMode no_gradients(false);
  embedding_rows();
  adam_in_one_pass();
  residual_in_product();
  product_in_slot();
  lengths_by_cudnn();
  return found_wrong ? 1 : 0;
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.code());
} catch (const c10::Error& error) {
  std::fprintf(stderr, "%s\n", error.what_without_backtrace());
  return 1;
}
